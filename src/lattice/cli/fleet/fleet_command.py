"""What the commands about the fleet share: the world from files or from a server, their flags, and how they end."""

import functools
import shlex
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lattice.cli.client.options import Command, Connection, with_connection
from lattice.cli.output import messages as say
from lattice.errors import LatticeError, NotFound, TooLarge

if TYPE_CHECKING:
    from lattice.kinds.meta.base import Kind
    from lattice.kinds.meta.yaml_manifest import Document
    from lattice.placement.inputs.price_book import PriceBook
    from lattice.placement.model.world import World

EXIT_CHANGES, EXIT_INFEASIBLE, EXIT_MIN_ERROR, EXIT_INTERNAL_ERROR = 1, 2, 3, 70
MAX_TABLE_CHARS = 64 << 20  # bytes of a price or latency file
DEFAULT_QUERY_TIMEOUT = (
    "5m"  # questions take longer than other requests, and the server has a limit of its own
)


class FleetCommand(Command):
    """Ends with 0, 1 and 2 for answers only: whatever goes wrong, wrong usage too, is 3 or more."""

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
        if isinstance(e, OSError) and not isinstance(e, BrokenPipeError):
            say.error(
                LatticeError(f"cannot be used: {(e.strerror or str(e)).lower()}", where=str(e.filename or ""))
            )
            raise click.exceptions.Exit(EXIT_MIN_ERROR) from e
        if isinstance(e, Exception) and not isinstance(e, click.exceptions.Exit | click.Abort | OSError):
            traceback.print_exception(e)  # Python would end with 1, which means something else here
            raise click.exceptions.Exit(EXIT_INTERNAL_ERROR) from e


@dataclass(frozen=True)
class FleetInputs:
    """Where the world is, and what would be changed in it."""

    connection: Connection
    world_files: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recursive: bool = False
    prices: tuple[str, ...] = ()
    latency: str = ""
    deletions: tuple[str, ...] = ()
    force: bool = False  # take fields over from whoever else manages them
    manifests: tuple[tuple["Document", Any], ...] = ()  # instead of `files`: manifests that are read already

    @property
    def is_offline(self) -> bool:
        return bool(self.world_files)

    @property
    def namespace(self) -> str:
        asked = self.connection.explicit_namespace
        return asked or ("default" if self.is_offline else self.connection.namespace)

    @property
    def change_flags(self) -> str:
        """What would be changed, and what tells its outcome, as it was typed."""
        named = [
            ("-f", self.files),
            ("--delete", self.deletions),
            ("--prices", self.prices),
            ("--latency", (self.latency,)),
        ]
        words = [f"{flag} {shlex.quote(value)}" for flag, values in named for value in values if value]
        return " ".join([*words, *(["-R"] if self.recursive else [])])

    @property
    def flags(self) -> str:
        """All of it, with where the world is."""
        known = [
            ("--world", self.world_files),
            ("--kubeconfig", (self.connection.kubeconfig,)),
            ("--context", (self.connection.context,)),
        ]
        words = [f"{flag} {shlex.quote(value)}" for flag, values in known for value in values if value]
        return " ".join([*([self.change_flags] if self.change_flags else []), *words])


_FLEET_OPTIONS = [
    click.option("-R", "--recursive", is_flag=True, help="Look in folders below, too."),
    click.option(
        "--world",
        "worlds",
        multiple=True,
        metavar="FILE|DIR",
        help="Ask no server: this is what there is; may be given again.",
    ),
    click.option(
        "--prices",
        multiple=True,
        metavar="CSV",
        help="Prices that go before the built-in ones; SkyPilot's catalogs are understood.",
    ),
    click.option("--latency", default="", metavar="CSV", help="Measured round trips: from,to,ms."),
]


def with_fleet_inputs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the flags that say where the world is; the command gets them as its first argument."""

    @functools.wraps(function)
    def call(
        connection: Connection,
        *,
        worlds: tuple[str, ...],
        recursive: bool,
        prices: tuple[str, ...],
        latency: str,
        **rest: Any,
    ) -> Any:
        given = FleetInputs(
            connection, worlds, rest.pop("files"), recursive, prices, latency, rest.pop("gone", ())
        )
        return function(given, **rest)

    wrapped: Callable[..., Any] = with_connection(call, DEFAULT_QUERY_TIMEOUT)
    for option in reversed(_FLEET_OPTIONS):
        wrapped = option(wrapped)
    return wrapped


def run_query(sources: FleetInputs, question: dict[str, Any]) -> dict[str, Any]:
    """The answer. The one place that decides who finds it: the server there is, or, with --world, this program on what files say."""
    from lattice.cli.output.messages import show_progress

    if not sources.is_offline:
        from lattice.cli.fleet.queries import query_server

        with show_progress("planning"):
            return query_server(sources, question)
    with show_progress("reading"):
        from lattice.cli.fleet.offline_world import load_changes, load_deletions, load_world
        from lattice.clock import SystemClock
        from lattice.placement.queries.dispatch import answer_query
        from lattice.server.fleet_queries.process_tuning import reduced_gc

        world = _with_tables(load_world(sources), sources)
        changes, gone = load_changes(sources), load_deletions(sources, world)
        _check_names(sources, world, changes)
    with show_progress("planning"), reduced_gc():
        return answer_query(question, world, changes, gone, SystemClock().monotonic)


def _check_names(sources: FleetInputs, world: "World", changes: "list[Kind]") -> None:
    """Names on the command line that mean nothing in this world, nor in the one that it would be."""
    from lattice.placement.inputs.latency import validate_latency_csv
    from lattice.placement.queries.dispatch import require_namespace

    after = world.with_objects(changes) if changes else world
    asked = sources.connection.explicit_namespace
    if asked:
        require_namespace(asked, {namespace for _, namespace, _ in after.objects if namespace})
    if sources.latency:
        offers = {*world.supply.offers, *after.supply.offers}
        validate_latency_csv(world.latency_csv, sources.latency, [each.place for each in offers])


def _with_tables(world: "World", sources: FleetInputs) -> "World":
    book = world.price_book
    for path in sources.prices:
        book = _with_price_file(book, path)
    csv = _read_table(sources.latency) if sources.latency else ""
    return replace(world, price_book=book, latency_csv=csv, latency_source=sources.latency)


def _with_price_file(book: "PriceBook", path: str) -> "PriceBook":
    text = _read_table(path)
    return book.with_csv(
        text, path, datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date().isoformat()
    )


def _read_table(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_TABLE_CHARS + 1)
    except (OSError, UnicodeError) as e:
        reason = (e.strerror or str(e)).lower() if isinstance(e, OSError) else "is not UTF-8 text"
        raise NotFound(
            f"cannot be read: {reason}", where=path, fix="check the path and who may read it"
        ) from e
    if len(text) > MAX_TABLE_CHARS:
        raise TooLarge(
            f"is larger than {MAX_TABLE_CHARS >> 20} MiB",
            where=path,
            fix="keep only the regions that you use",
        )
    return text


def fit_hint(document: dict[str, Any], sources: FleetInputs, happens: str = "") -> list[str]:
    """How to ask what would make a service fit, in the very world that left it without. `happens`: flags that say what happens."""
    bound = bool(sources.files or sources.deletions)  # -n says where those are, too
    named = (name.rpartition("/") for name in _unplaced_in_scope(document))
    found = next(((space, name) for space, _, name in named if not bound or space == sources.namespace), None)
    if found is None:
        return []
    space = "" if found[0] == "default" and sources.namespace == "default" else f"-n {shlex.quote(found[0])}"
    words = [part for part in ("lattice fit", f"service/{found[1]}", space, happens, sources.flags) if part]
    return ["", f"`{' '.join(words)}` lists the smallest changes that would make it fit"]


def _unplaced_in_scope(document: dict[str, Any]) -> list[str]:
    """Services without a place that the question is about: those that manifests declare first."""
    declared = {f"{each.get('namespace')}/{each['name']}" for each in document["declared"]}
    names = [each["name"] for each in document["unplaced"] if not each["isUntouched"]]
    return sorted(names, key=lambda name: name not in declared)


def service_key(word: str, namespace: str) -> str:
    """`service/api`, or `api`, as namespace/name."""
    from lattice.cli.client.kind_names import kind_names
    from lattice.errors import UsageError

    kind, slash, name = word.rpartition("/")
    if slash and [each.kind for each in kind_names().resolve(kind)] != ["LatticeService"]:
        raise UsageError(f"{word!r} is not a service", fix="write service/NAME, and -n for its namespace")
    if not name:
        raise UsageError("which service?", fix="write service/NAME")
    return f"{namespace}/{name}"
