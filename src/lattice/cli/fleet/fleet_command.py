"""Base of the fleet commands: flags for the world and the changes, query dispatch, and exit codes."""

import functools
import shlex
import traceback
from collections.abc import Callable
from typing import Any

import click

from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.output import messages as say
from lattice.errors import LatticeError

EXIT_CHANGES, EXIT_INFEASIBLE, EXIT_MIN_ERROR, EXIT_INTERNAL_ERROR = 1, 2, 3, 70
# Fleet queries take longer than other requests; the server has a limit of its own.
DEFAULT_QUERY_TIMEOUT = "5m"


class FleetCommand(Command):
    """Click command whose exit codes 0, 1 and 2 are answers; every error, including wrong usage, exits with 3
    or more."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _map_errors_to_exit_codes():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _map_errors_to_exit_codes():
            return super().invoke(ctx)


class _map_errors_to_exit_codes:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: object) -> None:
        if isinstance(e, LatticeError):
            say.error(e)
            raise click.exceptions.Exit(max(EXIT_MIN_ERROR, e.exit_code)) from e
        if isinstance(e, click.ClickException):
            e.show()
            raise click.exceptions.Exit(max(EXIT_MIN_ERROR, e.exit_code)) from e
        # `main` has an exit code of its own for a closed pipe.
        if isinstance(e, OSError) and not isinstance(e, BrokenPipeError):
            say.error(
                LatticeError(f"cannot be used: {(e.strerror or str(e)).lower()}", where=str(e.filename or ""))
            )
            raise click.exceptions.Exit(EXIT_MIN_ERROR) from e
        if isinstance(e, Exception) and not isinstance(e, click.exceptions.Exit | click.Abort | OSError):
            # Python would exit with 1, which means "changes" for a fleet command.
            traceback.print_exception(e)
            raise click.exceptions.Exit(EXIT_INTERNAL_ERROR) from e


_FLEET_OPTIONS = [
    click.option("-R", "--recursive", is_flag=True, help="Include subfolders."),
    click.option(
        "--world",
        "worlds",
        multiple=True,
        metavar="FILE|DIR",
        help="Read the world from these files instead of a server. Repeatable.",
    ),
    click.option(
        "--prices",
        multiple=True,
        metavar="CSV",
        help="Price file that overrides the built-in prices; SkyPilot catalogs work. Repeatable.",
    ),
    click.option(
        "--latency", default="", metavar="CSV", help="File of measured round-trip times: from,to,ms."
    ),
]


def with_fleet_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags of the world and the changes to a command, which gets FleetInputs as first argument."""

    @functools.wraps(function)
    def call(
        connection: Connection,
        *,
        worlds: tuple[str, ...],
        recursive: bool,
        prices: tuple[str, ...],
        latency: str,
        **other_options: Any,
    ) -> Any:
        inputs = FleetInputs(
            connection,
            worlds,
            other_options.pop("files"),
            recursive,
            prices,
            latency,
            other_options.pop("deletions", ()),
            other_options.pop("force_conflicts", False),
        )
        return function(inputs, **other_options)

    wrapped: Callable[..., Any] = with_connection(call, DEFAULT_QUERY_TIMEOUT)
    for option in reversed(_FLEET_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def run_query(sources: FleetInputs, query: dict[str, Any]) -> dict[str, Any]:
    """Answer a fleet query: on the server, or with --world in this process on the objects of the files."""
    from lattice.cli.output.messages import show_progress

    if not sources.is_offline:
        from lattice.cli.fleet.queries import query_server

        with show_progress("planning"):
            return query_server(sources, query)
    with show_progress("reading"):
        from lattice.cli.fleet.offline_world import load_changes, load_deletions, load_world
        from lattice.clock import SystemClock
        from lattice.placement.inputs.latency import validate_latency_csv
        from lattice.placement.queries.dispatch import answer_query, require_namespace
        from lattice.process_tuning import reduced_gc

        world = load_world(sources)
        changes, deletions = load_changes(sources), load_deletions(sources, world)
        # A namespace, or a place in the latency file, must exist before or after the change.
        changed_world = world.with_objects(changes) if changes else world
        if namespace := sources.connection.explicit_namespace:
            namespaces = {namespace for _, namespace, _ in changed_world.objects if namespace}
            require_namespace(namespace, namespaces)
        if sources.latency:
            offers = {*world.supply.offers, *changed_world.supply.offers}
            validate_latency_csv(world.latency_csv, sources.latency, [offer.place for offer in offers])
    # Fewer garbage collections while this process plans, as in the query process of a server.
    with show_progress("planning"), reduced_gc():
        return answer_query(query, world, changes, deletions, SystemClock().monotonic)


def fit_hint(document: dict[str, Any], sources: FleetInputs, event_flags: str = "") -> list[str]:
    """Hint with the `lattice fit` command for an unplaced service, in the same world and after the same event."""
    # The hint must repeat -n. With -f or --delete, -n would move the changes to the namespace of the service,
    # so only services of the changes' namespace get a hint.
    is_bound = bool(sources.files or sources.deletions)
    declared = {f"{item.get('namespace')}/{item['name']}" for item in document["declared"]}
    # Skip services that were unplaced without the change. Name services of the manifests first.
    unplaced = [item["name"] for item in document["unplaced"] if not item["isUntouched"]]
    for key in sorted(unplaced, key=lambda name: name not in declared):
        namespace, _, name = key.rpartition("/")
        if is_bound and namespace != sources.namespace:
            continue
        is_default = namespace == "default" and sources.namespace == "default"
        flag = "" if is_default else f"-n {shlex.quote(namespace)}"
        words = ["lattice fit", f"service/{name}", flag, event_flags, sources.flags]
        return [
            "",
            f"`{' '.join(filter(None, words))}` lists the smallest changes that would make the service fit",
        ]
    return []


def service_key(word: str, namespace: str) -> str:
    """Key namespace/name of a service named as `service/api` or `api`."""
    from lattice.cli.client.kind_names import kind_names
    from lattice.errors import UsageError

    kind, slash, name = word.rpartition("/")
    if slash and [resource.kind for resource in kind_names().resolve(kind)] != ["LatticeService"]:
        raise UsageError(f"{word!r} is not a service", fix="write service/NAME, and -n for its namespace")
    if not name:
        raise UsageError("no service is named", fix="write service/NAME")
    return f"{namespace}/{name}"
