"""The process that answers about the fleet: keeps a copy of what placement looks at, and takes one question at a time.

It reads messages from standard input and answers on what was standard output. It ends when its input does: with its server.
"""

import os
import queue
import signal
import sys
import threading
import traceback
import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

from lattice.clock import SystemClock
from lattice.errors import Cause, Invalid, LatticeError, NotFound
from lattice.kinds import KINDS
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.json_body import encode
from lattice.placement.queries.dispatch import answer, demand_namespace
from lattice.placement.inputs.latency import demand_places
from lattice.placement.model.world import Key as ObjectKey
from lattice.placement.model.world import World
from lattice.server.resources.api import Api
from lattice.server.requests.catalog import Catalog
from lattice.server.fleet_queries.process_tuning import settle_down
from lattice.server.fleet_queries.protocol import Ask, Load, Told, Written, decode_message, framed, read_frame
from lattice.server.fleet_queries.plan_cache import Plans
from lattice.server.requests.status_error import status_of
from lattice.server.fleet_queries.schema import (
    APPLY,
    LOOKED_AT,
    CostQuestion,
    Gone,
    OptimiseQuestion,
    PlanQuestion,
    Question,
    put,
    read_question,
)
from lattice.server.fleet_queries.dry_run import NAMESPACES, Applying, Rehearsal, Shelf
from lattice.server.fleet_queries.price_files import TableFiles, Tables, paths
from lattice.server.fleet_queries.yamltext import given
from lattice.store.protocol import Entry, Key

NICE = 5  # so that requests that take milliseconds go first where there are few processors
DEFAULT = "default"  # a namespace that is always there
REMEMBERED = 4  # of what was derived, this many times as much as there are services

Document = dict[str, Any]
_decoders = {kind.resource.id: msgspec.json.Decoder(kind, float_hook=Decimal) for kind in LOOKED_AT}


@dataclass
class Copy:
    """What the server has said there is. Each object is decoded once for as long as it stays as it is."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    adapters: frozenset[str] | None = None  # providers that machines can be had from; None: all of them
    _kinds: dict[Key, tuple[int, Kind]] = field(default_factory=dict)
    _world: World | None = None

    def take(self, load: Load) -> None:
        if load.anew:
            self.entries.clear()
            self._world = None
        for row in load.rows:
            self._world = None
            if row.value is None:
                self.entries.pop(row.key, None)
            else:
                self.entries[row.key] = Entry(row.key, row.value, row.revision)

    def world(self, tables: Tables) -> World:
        """With these tables. Budgets are those of the calendar month, of which something may be spent already."""
        known = self._world
        if known is None or known.book is not tables.book or known.latency_csv is not tables.latency_csv:
            known = self._world = World(self._objects(), *tables, adapters=self.adapters)
            settle_down()
        return replace(known, now=datetime.now(UTC))

    def tidy(self) -> None:
        """After a question: a world remembers what was derived for all the worlds that were tried from it."""
        if self._world and len(vars(self._world).get("_resolved", ())) > REMEMBERED * (
            len(self._world.services) + 100
        ):
            self._world = None

    def _objects(self) -> dict[ObjectKey, Kind]:
        self._kinds = {
            key: self._decoded(entry) for key, entry in self.entries.items() if key.resource in _decoders
        }
        return {(kind.resource.kind, key.namespace, key.name): kind for key, (_, kind) in self._kinds.items()}

    def _decoded(self, entry: Entry) -> tuple[int, Kind]:
        known = self._kinds.get(entry.key)
        return (
            known
            if known and known[0] == entry.revision
            else (entry.revision, _decoders[entry.key.resource].decode(entry.value))
        )


@dataclass
class Worker:
    files: TableFiles
    catalog: Catalog = field(default_factory=lambda: Catalog(KINDS))
    copy: Copy = field(default_factory=Copy)
    plans: Plans = field(default_factory=Plans)

    def told(self, ask: Ask) -> Told:
        try:
            document, written = self._answered(ask)
            return Told(200, encode(document), writes=written if ask.ask == APPLY else [])
        except LatticeError as error:
            return Told(error.status, encode(status_of(error)))
        except Exception:  # noqa: BLE001 - the server logs it, whatever it is; the next question may fare better
            broken = LatticeError("internal error; the server's log has the details")
            return Told(broken.status, encode(status_of(broken)), traceback.format_exc())

    def _answered(self, ask: Ask) -> tuple[Document, list[Written]]:
        question = read_question(ask.ask, ask.body)
        if isinstance(question, OptimiseQuestion) and question.time_limit_seconds > ask.most:
            cause = Cause(
                "timeLimitSeconds",
                f"Invalid value: {question.time_limit_seconds:g}: this server takes up to {ask.most:g}",
            )
            raise Invalid(cause.message, where=cause.field, causes=[cause])
        shelf = Shelf(self.copy.entries)
        rehearsal = self._rehearsal(shelf, ask.user, question)
        manifests = given(question)
        try:
            written = rehearsal.objects(manifests.all)
        except LatticeError as error:
            raise manifests.located(error) from error
        world = self._world(question)
        gone = [_gone(each, question.namespace, world) for each in question.delete]
        changes = [
            _decoders[each.key.resource].decode(each.value)
            for each in written
            if each.key.resource in _decoders
        ]
        self._check(question, world, changes)
        document = answer(put(ask.ask, question), world, changes, gone, SystemClock().monotonic)
        if isinstance(question, PlanQuestion):
            if question.expect:
                self.plans.hold_to(question.expect, document)
            self.plans.keep(document)
        ignored = {"ignored": rehearsal.ignored} if rehearsal.ignored else {}
        return {**document, "revision": str(ask.revision), **ignored}, written

    def _check(self, question: Question, world: World, changes: list[Kind]) -> None:
        """Names in the question that mean nothing here, nor in the world that it would be."""
        after = world.having(changes) if changes else world
        declared = {each.name for each in self.copy.entries if each.resource == NAMESPACES}
        known = {DEFAULT, *declared, *(namespace for _, namespace, _ in after.objects if namespace)}
        demand_namespace(question.namespace, known)
        if isinstance(question, CostQuestion) and question.in_namespace:
            demand_namespace(question.in_namespace, known)
        if question.latency is not None:
            offers = {*world.supply.offers, *after.supply.offers}
            demand_places(question.latency.csv, question.latency.source, [each.place for each in offers])

    def _world(self, question: Question) -> World:
        tables = self.files.now()
        world = self.copy.world(tables)
        if not question.prices and question.latency is None:
            return world
        book, csv, source = tables.before(question.prices, question.latency)
        return replace(world, book=book, latency_csv=csv, latency_source=source)

    def _rehearsal(self, shelf: Shelf, user: str, question: Question) -> Rehearsal:
        api = Api(shelf, self.catalog, SystemClock(), lambda: str(uuid.uuid4()), lambda: "")
        looked_at = frozenset(kind.resource.id for kind in LOOKED_AT)
        return Rehearsal(
            api, shelf, looked_at, Applying(user, question.namespace, question.field_manager, question.force)
        )


def _gone(named: Gone, namespace: str, world: World) -> ObjectKey:
    kind = next(
        (each for each in LOOKED_AT if each.resource.kind == named.kind and not each.resource.made), None
    )
    if kind is None:
        known = ", ".join(each.resource.kind for each in LOOKED_AT if not each.resource.made)
        raise Invalid(
            f"{named.kind} is nothing whose deletion can be planned",
            where="delete",
            fix=f"name one of {known}",
        )
    home = (named.namespace or namespace) if kind.resource.namespaced else ""
    found = (kind.resource.kind, home, named.name)
    if found not in world.objects:
        where = f" in namespace {home}" if home else ""
        raise NotFound(
            f"there is no {named.kind} {named.name}{where}",
            where="delete",
            fix="check its name and namespace",
        )
    return found


def _receive(source: BinaryIO, inbox: "queue.SimpleQueue[bytes]") -> None:
    """Reads also while a question is worked on: when the server is gone, so are we."""
    while (frame := read_frame(source)) is not None:
        inbox.put(frame)
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Called with the server's price files, its latency file, and the providers that machines can be had from."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends us in its own time
    os.nice(NICE)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(os.fdopen(os.dup(0), "rb"), inbox), daemon=True).start()
    prices, latency, adapters = arguments
    known = None if adapters == "*" else frozenset(paths(adapters))
    worker = Worker(TableFiles(paths(prices), latency), copy=Copy(adapters=known))
    while True:
        message = decode_message(inbox.get())
        if isinstance(message, Load):
            worker.copy.take(message)
            continue
        out.write(framed(worker.told(message)))
        out.flush()
        worker.copy.tidy()


if __name__ == "__main__":
    main(sys.argv[1:])
