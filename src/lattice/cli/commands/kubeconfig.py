"""`lattice kubeconfig`: the file with which kubectl and others reach the server, for you or for somebody else."""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

import click

from lattice.cli.output import messages as say
from lattice.cli.client.http import Client
from lattice.cli.client.options import Connection, connected
from lattice.usage import Misused


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    certificate: bytes = b""
    key: bytes = b""
    token: str = ""

    @property
    def entry(self) -> dict[str, Any]:
        if self.token:
            return {"token": self.token}
        return {
            "client-certificate-data": b64encode(self.certificate).decode(),
            "client-key-data": b64encode(self.key).decode(),
        }


def render(url: str, authority: bytes, credentials: Credentials, namespace: str = "default") -> str:
    import yaml

    cluster = {"server": url, "certificate-authority-data": b64encode(authority).decode()}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lattice", "cluster": cluster}],
        "users": [{"name": credentials.user, "user": credentials.entry}],
        "contexts": [
            {
                "name": "lattice",
                "context": {"cluster": "lattice", "user": credentials.user, "namespace": namespace},
            }
        ],
        "current-context": "lattice",
    }
    return yaml.safe_dump(content, sort_keys=False)


@click.command()
@click.option(
    "--user",
    default=None,
    metavar="NAME",
    help="Make credentials for this user; without it, print your own kubeconfig.",
)
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP",
    help="Group of that user: lattice:admins, lattice:viewers, or lattice:system, which is Lattice itself. Repeatable.",
)  # fmt: skip
@click.option(
    "--token",
    "as_token",
    is_flag=True,
    help="A bearer token, revocable by deleting its secret, instead of a certificate.",
)
@connected
def kubeconfig(connection: Connection, user: str | None, groups: tuple[str, ...], as_token: bool) -> None:
    """Print the kubeconfig with which kubectl reaches the server.

    \b
    Examples:
      lattice kubeconfig > ~/.kube/lattice
      lattice kubeconfig --user ann --group lattice:viewers > ann.kubeconfig
      lattice kubeconfig --user ci --group lattice:admins --token > ci.kubeconfig
    """
    _sensible(user, groups, as_token)
    server = connection.server
    if user is None:
        own = Credentials("me", server.certificate.encode(), server.key.encode(), server.token)
        click.echo(render(server.url, server.authority.encode(), own, connection.namespace), nl=False)
        return
    _warn(groups)
    made = (
        _token(connection.client, user, groups) if as_token else _certificate(connection.client, user, groups)
    )
    click.echo(render(server.url, server.authority.encode(), made, connection.namespace), nl=False)


def _sensible(user: str | None, groups: tuple[str, ...], as_token: bool) -> None:
    if user is None:
        for flag, given in (("--group", bool(groups)), ("--token", as_token)):
            if given:
                raise Misused(
                    f"{flag} is for another user",
                    fix="name the user with --user, or leave it out to print your own kubeconfig",
                )
        return
    if not user.strip():
        raise Misused(
            "a user needs a name",
            where="--user",
            fix="name the user, or leave --user out to print your own kubeconfig",
        )
    if not any(group.strip() for group in groups):
        raise Misused(
            f"user {user} would be in no group and could do nothing",
            where="--group",
            fix="add --group lattice:viewers",
        )


def _warn(groups: tuple[str, ...]) -> None:
    from lattice.server.access.authorization import ADMINS, SYSTEM, VIEWERS

    if SYSTEM in groups:
        say.warning(
            f"{SYSTEM} is Lattice's own identity: it may write what people may not, such as status and made kinds"
        )
    if not {ADMINS, VIEWERS, SYSTEM} & set(groups):
        say.warning(
            f"a user in group {', '.join(groups)} can do nothing; the groups that can are {ADMINS} and {VIEWERS}"
        )


def _certificate(client: Client, user: str, groups: tuple[str, ...]) -> Credentials:
    """Signed here, by the authority that administrators can read."""
    from lattice.server.access.certificate_authority import Pair, load_authority

    secret = client.get("/api/v1/namespaces/lattice-system/secrets/lattice-ca")["data"]
    authority = load_authority(Pair(b64decode(secret["tls.crt"]), b64decode(secret["tls.key"])))
    pair = authority.issue_client(user, list(groups))
    return Credentials(user, pair.certificate, pair.key)


def _token(client: Client, user: str, groups: tuple[str, ...]) -> Credentials:
    from lattice.cli.client.http import Request
    from lattice.server.access.authentication import new_token, token_secret

    token, _ = new_token()
    client.send(
        Request("POST", "/api/v1/namespaces/lattice-system/secrets", body=token_secret(token, user, groups))
    )
    return Credentials(user, token=token)
