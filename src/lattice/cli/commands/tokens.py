"""`lattice tokens`: one-time join tokens, with which machines join as nodes."""

from base64 import b64decode
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from lattice.cli.client.http import Client, Request
from lattice.cli.client.kind_names import resource_path
from lattice.cli.client.options import Connection, Duration, with_connection
from lattice.cli.output import messages as say
from lattice.cli.output import render
from lattice.errors import NotFound, UsageError
from lattice.kinds.meta.quantity import pluralize

SECRETS_PATH = "/api/v1/namespaces/lattice-system/secrets"
# Longest lifetime without and with --long-lived.
MAX_SHORT_TTL_S = 15 * 60.0
MAX_TTL_S = 24 * 3600.0


@click.group()
def tokens() -> None:
    """Create, list and delete join tokens for machines.

    \b
    Examples:
      lattice tokens create
      lattice tokens create --node rack-3 --ttl 15m
      lattice tokens list
      lattice tokens delete 5f2c9a01b7de
    """


@tokens.command()
@click.option(
    "--node", default="", metavar="NAME", help="Name of the node that may join; default: any new node."
)
@click.option(
    "--ttl",
    type=Duration(),
    default="15m",
    show_default=True,
    help="Lifetime of the token; more than 15m needs --long-lived.",
)
@click.option(
    "--long-lived",
    is_flag=True,
    help="Allow a --ttl of up to 24h; a leaked token lets any machine join until then.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label of the new node. Repeatable.",
)
@click.option("--cluster", default="", metavar="NAME", help="Cluster of the new node.")
@click.option("--pool", default="", metavar="NAME", help="Pool of the new node.")
@click.option("--node-class", default="", metavar="NAME", help="Class of the new node.")
@click.option("--region", default="", metavar="NAME", help="Region of the new node.")
@click.option("--zone", default="", metavar="NAME", help="Zone of the new node.")
@click.option(
    "--extended",
    multiple=True,
    metavar="NAME=COUNT",
    help="Other resource of the machine, such as example.com/dongle=2; it replaces what the agent reports. Repeatable.",
)
@click.option(
    "--licence",
    "licences",
    multiple=True,
    metavar="NAME",
    help="Licence of the machine; replaces those that the agent reports. Repeatable.",
)
@click.option(
    "--machine-image",
    default="",
    metavar="NAME",
    help="Machine image of the machine; replaces the one that the agent reports.",
)
@with_connection
def create(connection: Connection, node: str, ttl: float, long_lived: bool, **node_fields: Any) -> None:
    """Create a join token and print it; Lattice shows the token only once.

    With --pool alone the machine is capacity of the pool: any cluster of the pool uses it when a service
    needs it.
    """
    import secrets

    from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
    from lattice.kinds.meta.metadata_validation import name_problem
    from lattice.kinds.meta.timestamps import format_timestamp
    from lattice.kinds.node import LatticeNode, NodeSpec

    if not 0 < ttl <= MAX_TTL_S:
        raise UsageError(
            "must be above 0s and at most 24h", where="--ttl", fix="write a duration such as 15m"
        )
    if ttl > MAX_SHORT_TTL_S and not long_lived:
        raise UsageError(
            "a token that lives longer than 15 minutes may leak",
            where="--ttl",
            fix="add --long-lived to allow it",
        )
    if node and (problem := name_problem(LatticeNode.resource, node)):
        raise UsageError(
            f"{node!r} is not a valid node name: {problem}", where="--node", fix="choose another name"
        )
    labels = _labels(node_fields.pop("labels"))
    node_fields["extended"] = _amounts(node_fields["extended"])
    _warn_unusual_target(connection.client, node, pool=node_fields["pool"])
    _check_cluster(connection.client, pool=node_fields["pool"], cluster=node_fields["cluster"])
    # The token carries the authority's fingerprint, so that a joining machine can verify the server.
    authority = connection.client.get(f"{SECRETS_PATH}/lattice-ca")["data"]["tls.crt"]
    token = JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), fingerprint(b64decode(authority)))
    grant = Grant(
        expires=format_timestamp(datetime.now(UTC) + timedelta(seconds=ttl)),
        node=node,
        labels=labels,
        spec=NodeSpec(**node_fields),
    )
    connection.client.send(Request("POST", SECRETS_PATH, body=token_secret(token, grant)))
    click.echo(str(token))


def _warn_unusual_target(client: Client, node: str, *, pool: str) -> None:
    """Warn about a token for an existing node, or for a pool that does not exist yet."""
    from lattice.kinds.node import LatticeNode
    from lattice.kinds.pool import LatticePool

    if node and _exists(client, resource_path(LatticeNode.resource, None, node)):
        say.warning(
            f"node {node} exists already: the machine that joins with this token replaces the current machine"
        )
    if pool and not _exists(client, resource_path(LatticePool.resource, None, pool)):
        say.warning(f"there is no pool {pool} yet; see `lattice get pools`")


def _check_cluster(client: Client, *, pool: str, cluster: str) -> None:
    """Refuse a token for a cluster that does not exist or is in another pool: its machine could never be
    used."""
    from lattice.kinds.cluster import LatticeCluster

    if not cluster:
        return
    fix = f"create the token with --pool {pool or 'POOL'} only: a cluster of the pool takes the machine"
    try:
        spec = client.get(resource_path(LatticeCluster.resource, None, cluster))["spec"]
    except NotFound as error:
        raise NotFound(
            f"there is no cluster {cluster}: Lattice makes clusters for services", where="--cluster", fix=fix
        ) from error
    if pool and spec["pool"] != pool:
        raise UsageError(
            f"cluster {cluster} is in pool {spec['pool']}, not in pool {pool}", where="--cluster", fix=fix
        )


def _amounts(words: tuple[str, ...]) -> dict[str, str]:
    """The amounts of `--extended`, checked as the server checks them."""
    from lattice.kinds.node import extended_problems

    amounts: dict[str, str] = {}
    for word in words:
        name, equals, amount = word.partition("=")
        problems = [str(problem) for problem in extended_problems({name: amount}, "--extended")]
        if not equals or problems:
            message = problems[0] if equals else f"{word!r} is not NAME=COUNT"
            raise UsageError(
                message, where="--extended", fix="write NAME=COUNT, such as example.com/dongle=2"
            )
        amounts[name] = amount
    return amounts


def _exists(client: Client, path: str) -> bool:
    try:
        client.get(path)
    except NotFound:
        return False
    return True


def _labels(words: tuple[str, ...]) -> dict[str, str]:
    from lattice.kinds.meta.selector import label_key_problem, label_value_problem

    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or (problem := label_key_problem(key) or label_value_problem(value)):
            message = f"{word!r} is not KEY=VALUE" if not equals else f"{word!r}: {problem}"
            raise UsageError(message, where="--label", fix="write the label as KEY=VALUE, such as rack=a3")
        labels[key] = value
    return labels


@tokens.command("list")
@click.option("--all", "show_all", is_flag=True, help="Include the tokens of machines that Lattice makes.")
@with_connection
def list_tokens(connection: Connection, show_all: bool) -> None:
    """List join tokens with their node, expiry and state."""
    from lattice.kinds.join_token import is_expired

    rows = [["ID", "NODE", "EXPIRES", "STATE"]]
    hidden = 0
    for secret, record in _list_join_tokens(connection.client):
        # The token of a machine that Lattice makes names the uid of the node, which exists before the machine.
        if record.grant.uid and not show_all:
            hidden += 1
            continue
        expired = is_expired(record.grant, datetime.now(UTC))
        state = "expired" if expired else "unused"
        if record.used_as:
            state = f"used by {record.used_as}"
        rows.append(
            [
                secret["metadata"]["name"].removeprefix("join-"),
                record.grant.node or "any",
                record.grant.expires,
                state,
            ]
        )
    for row in rows:
        click.echo(render.line(row, render.widths(rows)))
    if hidden:
        say.note(f"{pluralize(hidden, 'token')} of machines that Lattice makes not shown; --all lists them")


@tokens.command()
@click.argument("ids", nargs=-1, metavar="ID...")
@click.option("--expired", is_flag=True, help="Delete all expired tokens.")
@with_connection
def delete(connection: Connection, ids: tuple[str, ...], expired: bool) -> None:
    """Delete join tokens. Nodes that joined with them stay."""
    from lattice.kinds.join_token import is_expired

    if bool(ids) == expired:
        raise UsageError("no tokens are named", fix="give token IDs, or --expired")
    if expired:
        ids = tuple(
            secret["metadata"]["name"].removeprefix("join-")
            for secret, record in _list_join_tokens(connection.client)
            if is_expired(record.grant, datetime.now(UTC))
        )
    for token_id in ids:
        # The user may paste the whole token, ljt-ID.SECRET, instead of the id.
        name = token_id.removeprefix("ljt-").partition(".")[0]
        try:
            connection.client.send(Request("DELETE", f"{SECRETS_PATH}/join-{name}"))
        except NotFound as error:
            raise NotFound(f"there is no token {name}", fix="see `lattice tokens list`") from error
        click.echo(f"token {name} deleted")


def _list_join_tokens(client: Client) -> list[tuple[dict[str, Any], Any]]:
    from lattice.kinds.join_token import read_token_record

    tokens = []
    for page in client.list_pages(SECRETS_PATH, {"limit": "500"}):
        for item in page.get("items") or []:
            record = read_token_record(item)
            if record is not None:
                tokens.append((item, record))
    return tokens
