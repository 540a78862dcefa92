"""The server that a command talks to and the user's credentials, from flags, the environment or a discovered
kubeconfig."""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice.errors import Malformed, NotFound, Unavailable

LOCAL_KUBECONFIG = Path(".lattice") / "kubeconfig"
# Environment variables with the server's address, in order of precedence.
ADDRESS_VARIABLES = ("LATTICE_ADDR", "CONTROL_PLANE_API_URL")


@dataclass(frozen=True, slots=True)
class Server:
    """Address of a server with the credentials of the user; certificates and keys are PEM text."""

    url: str
    authority: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    namespace: str = ""
    insecure: bool = False
    # Name that the server's certificate must carry, if different from the host in the URL.
    tls_server_name: str = ""
    # Where the address came from, for error messages: a file or an environment variable.
    source: str = field(default="the kubeconfig", compare=False)


def find_server(
    kubeconfig: str | None = None, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> Server:
    """The server to use; precedence: --kubeconfig, LATTICE_KUBECONFIG, an address in the environment,
    .lattice/kubeconfig in this folder or above, KUBECONFIG."""
    if chosen := kubeconfig or environment.get("LATTICE_KUBECONFIG"):
        return read_kubeconfig(Path(chosen), context)
    for variable in ADDRESS_VARIABLES:
        address = environment.get(variable)
        if not address:
            continue
        url = address if "://" in address else f"https://{address}"
        authority = environment.get("LATTICE_CA", "")
        if authority and "BEGIN CERTIFICATE" not in authority:
            authority = _read_text(Path(authority), "LATTICE_CA")
        token = environment.get("LATTICE_TOKEN", "")
        return Server(url.rstrip("/"), authority=authority, token=token, source=variable)
    for path in discover_kubeconfigs(Path.cwd(), environment):
        return read_kubeconfig(path, context)
    raise Unavailable(
        "no server is configured",
        fix="start one with `lattice up`, or name one with --kubeconfig or LATTICE_ADDR",
    )


def is_default_kubeconfig(kubeconfig: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a command without flags uses this kubeconfig if the user runs it in the current folder."""
    if any(environment.get(variable) for variable in ("LATTICE_KUBECONFIG", *ADDRESS_VARIABLES)):
        return False
    return next(
        (path.resolve() == kubeconfig.resolve() for path in discover_kubeconfigs(Path.cwd(), environment)),
        False,
    )


def discover_kubeconfigs(folder: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Kubeconfigs that commands use without a flag, nearest first."""
    for candidate in (folder, *folder.parents):
        path = candidate / LOCAL_KUBECONFIG
        try:
            # Another user's file in a shared folder must not choose the server.
            is_trusted = path.is_file() and path.stat().st_uid in (os.getuid(), 0)
        except OSError:
            continue
        if is_trusted:
            yield path
    # The user named these files, so their owner does not matter.
    for part in environment.get("KUBECONFIG", "").split(os.pathsep):
        if part and Path(part).is_file():
            yield Path(part)


def read_kubeconfig(path: Path, context: str | None = None) -> Server:
    """Read one context of a kubeconfig: the address of the server, the trusted authority and the credentials."""
    import yaml

    try:
        config = yaml.load(
            _read_text(path, "kubeconfig"),
            Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506
        )
    except yaml.YAMLError as e:
        raise Malformed(
            f"is not YAML: {e}", where=str(path), fix="create it again with `lattice kubeconfig`"
        ) from e
    if not isinstance(config, dict):
        raise Malformed(
            "is not a kubeconfig", where=str(path), fix="create it again with `lattice kubeconfig`"
        )
    context_name = context or config.get("current-context") or ""
    if not context_name:
        raise Malformed("names no current-context", where=str(path), fix="choose one with --context")
    entry = _kubeconfig_entry(config, "contexts", "context", context_name, path)
    cluster = _kubeconfig_entry(config, "clusters", "cluster", str(entry.get("cluster", "")), path)
    user = _kubeconfig_entry(config, "users", "user", str(entry["user"]), path) if entry.get("user") else {}
    return _server_from_kubeconfig(entry, cluster, user, path)


def _server_from_kubeconfig(
    entry: dict[str, Any], cluster: dict[str, Any], user: dict[str, Any], path: Path
) -> Server:
    if not cluster.get("server"):
        raise Malformed(
            "the cluster has no server address", where=str(path), fix="set clusters[].cluster.server"
        )
    # An exec plugin would run a program that the kubeconfig names.
    if "exec" in user or "auth-provider" in user:
        raise Malformed(
            "uses an authentication plugin, which is not supported",
            where=str(path),
            fix="use a token or a client certificate",
        )
    token_file = user.get("tokenFile")
    return Server(
        url=str(cluster["server"]).rstrip("/"),
        authority=_inline_or_file(cluster, "certificate-authority", path),
        certificate=_inline_or_file(user, "client-certificate", path),
        key=_inline_or_file(user, "client-key", path),
        token=str(user.get("token") or "")
        or (_read_text(path.parent / token_file, "tokenFile").strip() if token_file else ""),
        namespace=str(entry.get("namespace") or ""),
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        tls_server_name=str(cluster.get("tls-server-name") or ""),
        source=str(path),
    )


def _kubeconfig_entry(
    config: dict[str, Any], group: str, inner: str, name: str, path: Path
) -> dict[str, Any]:
    entries = [e for e in config.get(group) or [] if isinstance(e, dict)]
    for entry in entries:
        if entry.get("name") == name:
            return entry.get(inner) or {}
    names = ", ".join(str(e.get("name")) for e in entries) or "none"
    raise NotFound(f"there is no {inner} {name!r}", where=str(path), fix=f"{group} of this file: {names}")


def _inline_or_file(entry: dict[str, Any], field: str, path: Path) -> str:
    """A PEM text of a kubeconfig entry: inline base64, or the content of a file relative to the kubeconfig."""
    if data := entry.get(f"{field}-data"):
        try:
            return base64.b64decode("".join(str(data).split()), validate=True).decode()
        except (binascii.Error, UnicodeError) as e:
            raise Malformed(
                f"{field}-data is not base64 of a PEM text",
                where=str(path),
                fix="create it again with `lattice kubeconfig`",
            ) from e
    if file := entry.get(field):
        return _read_text(path.parent / str(file), field)
    return ""


def _read_text(path: Path, role: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not a text file"
        raise NotFound(
            f"cannot read the {role}: {reason}", where=str(path), fix="check the path and its permissions"
        ) from e
