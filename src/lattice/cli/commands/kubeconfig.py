"""`lattice kubeconfig`: the kubeconfig of the user, or new credentials for another user."""

from base64 import b64decode

import click

from lattice.app.kubeconfig import Credentials, render_kubeconfig
from lattice.cli.client.http import Client, Request
from lattice.cli.client.options import Connection, with_connection
from lattice.cli.commands.tokens import SECRETS_PATH
from lattice.cli.output import messages as say
from lattice.errors import UsageError


@click.command()
@click.option(
    "--user",
    default=None,
    metavar="NAME",
    help="Create credentials for this user; default: print your own kubeconfig.",
)
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP",
    help="Group of that user: lattice:admins, lattice:viewers, or lattice:system, which is Lattice itself. Repeatable.",
)  # fmt: skip
@click.option(
    "--token",
    "as_token",
    is_flag=True,
    help="Use a bearer token instead of a certificate; delete its secret to revoke it.",
)
@with_connection
def kubeconfig(connection: Connection, user: str | None, groups: tuple[str, ...], as_token: bool) -> None:
    """Print a kubeconfig for kubectl and other clients.

    \b
    Examples:
      lattice kubeconfig > ~/.kube/lattice
      lattice kubeconfig --user ann --group lattice:viewers > ann.kubeconfig
      lattice kubeconfig --user ci --group lattice:admins --token > ci.kubeconfig
    """
    server = connection.server
    if user is None:
        for flag, is_given in (("--group", bool(groups)), ("--token", as_token)):
            if is_given:
                raise UsageError(
                    f"{flag} needs --user",
                    fix="name the user with --user, or remove the flag to print your own kubeconfig",
                )
        own = Credentials("me", server.certificate.encode(), server.key.encode(), server.token)
        click.echo(
            render_kubeconfig(server.url, server.authority.encode(), own, connection.namespace), nl=False
        )
        return
    if not user.strip():
        raise UsageError(
            "a user needs a name",
            where="--user",
            fix="name the user, or omit --user to print your own kubeconfig",
        )
    if not any(group.strip() for group in groups):
        raise UsageError(
            f"user {user} would be in no group and could do nothing",
            where="--group",
            fix="add --group lattice:viewers",
        )
    from lattice.server.access.authorization import ADMIN_GROUP, SYSTEM_GROUP, VIEWER_GROUP

    if SYSTEM_GROUP in groups:
        say.warning(
            f"{SYSTEM_GROUP} is Lattice's own identity: it may write status and managed kinds, which users may not"
        )
    if not {ADMIN_GROUP, VIEWER_GROUP, SYSTEM_GROUP} & set(groups):
        say.warning(
            f"a user in group {', '.join(groups)} can do nothing; the groups that can are {ADMIN_GROUP} and {VIEWER_GROUP}"
        )
    issue = _issue_token if as_token else _issue_certificate
    credentials = issue(connection.client, user, groups)
    click.echo(
        render_kubeconfig(server.url, server.authority.encode(), credentials, connection.namespace), nl=False
    )


def _issue_certificate(client: Client, user: str, groups: tuple[str, ...]) -> Credentials:
    """Issue a client certificate with the authority's key, which only administrators can read."""
    from lattice.server.access.certificate_authority import CertificateKeyPair, load_authority

    secret = client.get(f"{SECRETS_PATH}/lattice-ca")["data"]
    authority = load_authority(CertificateKeyPair(b64decode(secret["tls.crt"]), b64decode(secret["tls.key"])))
    pair = authority.issue_client(user, list(groups))
    return Credentials(user, pair.certificate, pair.key)


def _issue_token(client: Client, user: str, groups: tuple[str, ...]) -> Credentials:
    from lattice.server.access.authentication import new_token, token_secret

    token, _ = new_token()
    client.send(Request("POST", SECRETS_PATH, body=token_secret(token, user, groups)))
    return Credentials(user, token=token)
