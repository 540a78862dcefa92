"""Which server a command talks to, and as whom: from flags, the environment, or a kubeconfig near by."""

import base64
import binascii
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice.errors import Malformed, NotFound, Unavailable

LOCAL_KUBECONFIG = Path(".lattice") / "kubeconfig"
ADDRESS_VARIABLES = (
    "LATTICE_ADDR",
    "CONTROL_PLANE_API_URL",
)  # environment variables with the address of the server, in order


@dataclass(frozen=True, slots=True)
class Server:
    """An address and what is needed to be let in. Certificates and keys are PEM text."""

    url: str
    authority: str = ""
    certificate: str = ""
    key: str = ""
    token: str = ""
    namespace: str = ""
    insecure: bool = False
    tls_server_name: str = ""  # what the certificate must say, if not the host in the url
    source: str = field(default="the kubeconfig", compare=False)  # who told us


def find_server(
    kubeconfig: str | None = None, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> Server:
    """In order: the flag, LATTICE_KUBECONFIG, an address in the environment, .lattice/kubeconfig here or above, KUBECONFIG."""
    if chosen := kubeconfig or environment.get("LATTICE_KUBECONFIG"):
        return read_kubeconfig(Path(chosen), context)
    for variable in ADDRESS_VARIABLES:
        if environment.get(variable):
            return _from_environment(variable, environment)
    for path in discover_kubeconfigs(Path.cwd(), environment):
        return read_kubeconfig(path, context)
    raise Unavailable(
        "no server known here",
        fix="start one with `lattice up`, or name one with --kubeconfig or LATTICE_ADDR",
    )


def is_default_kubeconfig(kubeconfig: Path, environment: Mapping[str, str] = os.environ) -> bool:
    """Do commands that are run here use this file by themselves?"""
    if any(environment.get(variable) for variable in ("LATTICE_KUBECONFIG", *ADDRESS_VARIABLES)):
        return False
    return next(
        (path.resolve() == kubeconfig.resolve() for path in discover_kubeconfigs(Path.cwd(), environment)),
        False,
    )


def discover_kubeconfigs(here: Path, environment: Mapping[str, str]) -> Iterator[Path]:
    """Kubeconfigs that need no flag to be found, nearest first."""
    yield from (
        folder / LOCAL_KUBECONFIG
        for folder in (here, *here.parents)
        if _is_trusted_file(folder / LOCAL_KUBECONFIG)
    )
    yield from (
        Path(part)
        for part in environment.get("KUBECONFIG", "").split(os.pathsep)
        if part and Path(part).is_file()
    )


def _is_trusted_file(path: Path) -> bool:
    """What somebody else left in a shared folder must not choose whom we talk to."""
    try:
        return path.is_file() and path.stat().st_uid in (os.getuid(), 0)
    except OSError:
        return False


def _from_environment(variable: str, environment: Mapping[str, str]) -> Server:
    address = environment[variable]
    url = address if "://" in address else f"https://{address}"
    authority = environment.get("LATTICE_CA", "")
    if authority and "BEGIN CERTIFICATE" not in authority:
        authority = _read_text(Path(authority), "LATTICE_CA")
    return Server(
        url.rstrip("/"), authority=authority, token=environment.get("LATTICE_TOKEN", ""), source=variable
    )


def read_kubeconfig(path: Path, context: str | None = None) -> Server:
    import yaml

    try:
        found = yaml.load(
            _read_text(path, "kubeconfig"),
            Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),  # noqa: S506
        )
    except yaml.YAMLError as e:
        raise Malformed(
            f"is not YAML: {e}", where=str(path), fix="write it again with `lattice kubeconfig`"
        ) from e
    if not isinstance(found, dict):
        raise Malformed(
            "is not a kubeconfig", where=str(path), fix="write it again with `lattice kubeconfig`"
        )
    chosen = context or found.get("current-context") or ""
    if not chosen:
        raise Malformed("names no current-context", where=str(path), fix="choose one with --context")
    entry = _kubeconfig_entry(found, "contexts", "context", chosen, path)
    cluster = _kubeconfig_entry(found, "clusters", "cluster", str(entry.get("cluster", "")), path)
    user = _kubeconfig_entry(found, "users", "user", str(entry["user"]), path) if entry.get("user") else {}
    return _server_from_kubeconfig(entry, cluster, user, path)


def _server_from_kubeconfig(
    entry: dict[str, Any], cluster: dict[str, Any], user: dict[str, Any], path: Path
) -> Server:
    if not cluster.get("server"):
        raise Malformed(
            "the cluster has no server address", where=str(path), fix="set clusters[].cluster.server"
        )
    if "exec" in user or "auth-provider" in user:
        raise Malformed(
            "logs in with a plugin, which is not supported",
            where=str(path),
            fix="use a token or a client certificate",
        )
    return Server(
        url=str(cluster["server"]).rstrip("/"),
        authority=_inline_or_file(cluster, "certificate-authority", path),
        certificate=_inline_or_file(user, "client-certificate", path),
        key=_inline_or_file(user, "client-key", path),
        token=str(user.get("token") or "")
        or (
            _read_text(path.parent / user["tokenFile"], "tokenFile").strip() if user.get("tokenFile") else ""
        ),
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
    known = ", ".join(str(e.get("name")) for e in entries) or "none"
    raise NotFound(f"there is no {inner} {name!r}", where=str(path), fix=f"known {group}: {known}")


def _inline_or_file(entry: dict[str, Any], field: str, path: Path) -> str:
    if data := entry.get(f"{field}-data"):
        try:
            return base64.b64decode("".join(str(data).split()), validate=True).decode()
        except (binascii.Error, UnicodeError) as e:
            raise Malformed(
                f"{field}-data is not base64 of a PEM text",
                where=str(path),
                fix="write it again with `lattice kubeconfig`",
            ) from e
    if file := entry.get(field):
        return _read_text(path.parent / str(file), field)
    return ""


def _read_text(path: Path, what: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not a text file"
        raise NotFound(
            f"cannot read the {what}: {reason}", where=str(path), fix="check the path and its permissions"
        ) from e
