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

from lattice.cli.output import messages as say
from lattice.cli.client.options import Command, Connection, connected
from lattice.errors import LatticeError, NotFound, TooLarge

if TYPE_CHECKING:
    from lattice.kinds.meta.base import Kind
    from lattice.kinds.meta.yaml_manifest import Document
    from lattice.placement.inputs.price_book import PriceBook
    from lattice.placement.model.world import World

CHANGES, INFEASIBLE, LEAST_ERROR, BROKEN = 1, 2, 3, 70
MAX_TABLE = 64 << 20  # bytes of a price or latency file
PATIENCE = "5m"  # questions take longer than other requests, and the server has a limit of its own


class FleetCommand(Command):
    """Ends with 0, 1 and 2 for answers only: whatever goes wrong, wrong usage too, is 3 or more."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        with _errors_apart():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_apart():
            return super().invoke(ctx)


class _errors_apart:  # noqa: N801 - reads as a statement
    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: object) -> None:
        if isinstance(e, LatticeError):
            say.error(e)
            raise click.exceptions.Exit(max(LEAST_ERROR, e.exit_code)) from e
        if isinstance(e, click.ClickException):
            e.show()
            raise click.exceptions.Exit(max(LEAST_ERROR, e.exit_code)) from e
        if isinstance(e, OSError) and not isinstance(e, BrokenPipeError):
            say.error(
                LatticeError(f"cannot be used: {(e.strerror or str(e)).lower()}", where=str(e.filename or ""))
            )
            raise click.exceptions.Exit(LEAST_ERROR) from e
        if isinstance(e, Exception) and not isinstance(e, click.exceptions.Exit | click.Abort | OSError):
            traceback.print_exception(e)  # Python would end with 1, which means something else here
            raise click.exceptions.Exit(BROKEN) from e


@dataclass(frozen=True)
class Sources:
    """Where the world is, and what would be changed in it."""

    connection: Connection
    worlds: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    recursive: bool = False
    prices: tuple[str, ...] = ()
    latency: str = ""
    gone: tuple[str, ...] = ()
    force: bool = False  # take fields over from whoever else manages them
    given: tuple[tuple["Document", Any], ...] = ()  # instead of `files`: manifests that are read already

    @property
    def is_offline(self) -> bool:
        return bool(self.worlds)

    @property
    def namespace(self) -> str:
        asked = self.connection.asked_namespace
        return asked or ("default" if self.is_offline else self.connection.namespace)

    @property
    def change_flags(self) -> str:
        """What would be changed, and what tells its outcome, as it was typed."""
        named = [
            ("-f", self.files),
            ("--delete", self.gone),
            ("--prices", self.prices),
            ("--latency", (self.latency,)),
        ]
        words = [f"{flag} {shlex.quote(value)}" for flag, values in named for value in values if value]
        return " ".join([*words, *(["-R"] if self.recursive else [])])

    @property
    def flags(self) -> str:
        """All of it, with where the world is."""
        known = [
            ("--world", self.worlds),
            ("--kubeconfig", (self.connection.kubeconfig,)),
            ("--context", (self.connection.context,)),
        ]
        words = [f"{flag} {shlex.quote(value)}" for flag, values in known for value in values if value]
        return " ".join([*([self.change_flags] if self.change_flags else []), *words])


_FLAGS = [
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


def about_the_fleet(function: Callable[..., Any]) -> Callable[..., Any]:
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
        given = Sources(
            connection, worlds, rest.pop("files"), recursive, prices, latency, rest.pop("gone", ())
        )
        return function(given, **rest)

    wrapped: Callable[..., Any] = connected(call, PATIENCE)
    for option in reversed(_FLAGS):
        wrapped = option(wrapped)
    return wrapped


def ask(sources: Sources, question: dict[str, Any]) -> dict[str, Any]:
    """The answer. The one place that decides who finds it: the server there is, or, with --world, this program on what files say."""
    from lattice.cli.output.waiting import waiting

    if not sources.is_offline:
        from lattice.cli.fleet.queries import ask_server

        with waiting("planning"):
            return ask_server(sources, question)
    with waiting("reading"):
        from lattice.cli.fleet.offline_world import changes_in, gone_in, world_in
        from lattice.clock import SystemClock
        from lattice.placement.queries.dispatch import answer
        from lattice.server.fleet_queries.process_tuning import undisturbed

        world = _with_tables(world_in(sources), sources)
        changes, gone = changes_in(sources), gone_in(sources, world)
        _check(sources, world, changes)
    with waiting("planning"), undisturbed():
        return answer(question, world, changes, gone, SystemClock().monotonic)


def _check(sources: Sources, world: "World", changes: "list[Kind]") -> None:
    """Names on the command line that mean nothing in this world, nor in the one that it would be."""
    from lattice.placement.queries.dispatch import demand_namespace
    from lattice.placement.inputs.latency import demand_places

    after = world.having(changes) if changes else world
    asked = sources.connection.asked_namespace
    if asked:
        demand_namespace(asked, {namespace for _, namespace, _ in after.objects if namespace})
    if sources.latency:
        offers = {*world.supply.offers, *after.supply.offers}
        demand_places(world.latency_csv, sources.latency, [each.place for each in offers])


def _with_tables(world: "World", sources: Sources) -> "World":
    book = world.book
    for path in sources.prices:
        book = _priced(book, path)
    csv = _read(sources.latency) if sources.latency else ""
    return replace(world, book=book, latency_csv=csv, latency_source=sources.latency)


def _priced(book: "PriceBook", path: str) -> "PriceBook":
    text = _read(path)
    return book.with_csv(
        text, path, datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date().isoformat()
    )


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_TABLE + 1)
    except (OSError, UnicodeError) as e:
        reason = (e.strerror or str(e)).lower() if isinstance(e, OSError) else "is not UTF-8 text"
        raise NotFound(
            f"cannot be read: {reason}", where=path, fix="check the path and who may read it"
        ) from e
    if len(text) > MAX_TABLE:
        raise TooLarge(
            f"is larger than {MAX_TABLE >> 20} MiB", where=path, fix="keep only the regions that you use"
        )
    return text


def fit_hint(document: dict[str, Any], sources: Sources, happens: str = "") -> list[str]:
    """How to ask what would make a service fit, in the very world that left it without. `happens`: flags that say what happens."""
    bound = bool(sources.files or sources.gone)  # -n says where those are, too
    named = (name.rpartition("/") for name in _in_question(document))
    found = next(((space, name) for space, _, name in named if not bound or space == sources.namespace), None)
    if found is None:
        return []
    space = "" if found[0] == "default" and sources.namespace == "default" else f"-n {shlex.quote(found[0])}"
    words = [part for part in ("lattice fit", f"service/{found[1]}", space, happens, sources.flags) if part]
    return ["", f"`{' '.join(words)}` lists the smallest changes that would make it fit"]


def _in_question(document: dict[str, Any]) -> list[str]:
    """Services without a place that the question is about: those that manifests declare first."""
    declared = {f"{each.get('namespace')}/{each['name']}" for each in document["declared"]}
    names = [each["name"] for each in document["unplaced"] if not each["isUntouched"]]
    return sorted(names, key=lambda name: name not in declared)


def service_named(word: str, namespace: str) -> str:
    """`service/api`, or `api`, as namespace/name."""
    from lattice.cli.client.kind_names import names
    from lattice.usage import Misused

    kind, slash, name = word.rpartition("/")
    if slash and [each.kind for each in names().resolve(kind)] != ["LatticeService"]:
        raise Misused(f"{word!r} is not a service", fix="write service/NAME, and -n for its namespace")
    if not name:
        raise Misused("which service?", fix="write service/NAME")
    return f"{namespace}/{name}"
