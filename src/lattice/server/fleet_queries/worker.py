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
from lattice.placement.inputs.latency import validate_latency_csv
from lattice.placement.model.world import ObjectKey as ObjectKey
from lattice.placement.model.world import World
from lattice.placement.queries.dispatch import answer_query, require_namespace
from lattice.server.fleet_queries.dry_run import NAMESPACES, ApplyOptions, DryRun, OverlayStore
from lattice.server.fleet_queries.plan_cache import PlanCache
from lattice.server.fleet_queries.pricing_files import PricingFiles, PricingTables, split_comma_list
from lattice.server.fleet_queries.process_tuning import freeze_heap
from lattice.server.fleet_queries.protocol import (
    Load,
    PlannedWrite,
    QueryRequest,
    QueryResult,
    decode_message,
    encode_frame,
    read_frame,
)
from lattice.server.fleet_queries.query_schema import (
    APPLY_QUERY,
    PLACEMENT_INPUT_KINDS,
    CostQuery,
    FleetQuery,
    OptimiseQuery,
    PlannedDeletion,
    PlanQuery,
    parse_query,
    placement_query,
    query_manifests,
)
from lattice.server.requests.catalog import Catalog
from lattice.server.requests.status_error import status_of
from lattice.server.resources.api import Api
from lattice.store.protocol import Entry, Key

NICE = 5  # so that requests that take milliseconds go first where there are few processors
DEFAULT_NAMESPACE = "default"  # a namespace that is always there
MAX_DERIVED_PER_SERVICE = 4  # of what was derived, this many times as much as there are services

Document = dict[str, Any]
_decoders = {
    kind.resource.id: msgspec.json.Decoder(kind, float_hook=Decimal) for kind in PLACEMENT_INPUT_KINDS
}


@dataclass
class FleetCache:
    """What the server has said there is. Each object is decoded once for as long as it stays as it is."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    providers: frozenset[str] | None = None  # providers that machines can be had from; None: all of them
    _decoded_objects: dict[Key, tuple[int, Kind]] = field(default_factory=dict)
    _world: World | None = None

    def apply_load(self, load: Load) -> None:
        if load.anew:
            self.entries.clear()
            self._world = None
        for row in load.rows:
            self._world = None
            if row.value is None:
                self.entries.pop(row.key, None)
            else:
                self.entries[row.key] = Entry(row.key, row.value, row.revision)

    def world(self, tables: PricingTables) -> World:
        """With these tables. Budgets are those of the calendar month, of which something may be spent already."""
        known = self._world
        if (
            known is None
            or known.price_book is not tables.book
            or known.latency_csv is not tables.latency_csv
        ):
            known = self._world = World(self._objects(), *tables, adapters=self.providers)
            freeze_heap()
        return replace(known, now=datetime.now(UTC))

    def trim(self) -> None:
        """After a question: a world remembers what was derived for all the worlds that were tried from it."""
        if self._world and len(vars(self._world).get("_demand_cache", ())) > MAX_DERIVED_PER_SERVICE * (
            len(self._world.services) + 100
        ):
            self._world = None

    def _objects(self) -> dict[ObjectKey, Kind]:
        self._decoded_objects = {
            key: self._decode(entry) for key, entry in self.entries.items() if key.resource in _decoders
        }
        return {
            (kind.resource.kind, key.namespace, key.name): kind
            for key, (_, kind) in self._decoded_objects.items()
        }

    def _decode(self, entry: Entry) -> tuple[int, Kind]:
        known = self._decoded_objects.get(entry.key)
        return (
            known
            if known and known[0] == entry.revision
            else (entry.revision, _decoders[entry.key.resource].decode(entry.value))
        )


@dataclass
class QueryWorker:
    pricing_files: PricingFiles
    catalog: Catalog = field(default_factory=lambda: Catalog(KINDS))
    cache: FleetCache = field(default_factory=FleetCache)
    plan_cache: PlanCache = field(default_factory=PlanCache)

    def handle(self, ask: QueryRequest) -> QueryResult:
        try:
            document, written = self._answer_query(ask)
            return QueryResult(200, encode(document), writes=written if ask.ask == APPLY_QUERY else [])
        except LatticeError as error:
            return QueryResult(error.status, encode(status_of(error)))
        except Exception:  # noqa: BLE001 - the server logs it, whatever it is; the next question may fare better
            broken = LatticeError("internal error; the server's log has the details")
            return QueryResult(broken.status, encode(status_of(broken)), traceback.format_exc())

    def _answer_query(self, ask: QueryRequest) -> tuple[Document, list[PlannedWrite]]:
        question = parse_query(ask.ask, ask.body)
        if isinstance(question, OptimiseQuery) and question.time_limit_seconds > ask.most:
            cause = Cause(
                "timeLimitSeconds",
                f"Invalid value: {question.time_limit_seconds:g}: this server takes up to {ask.most:g}",
            )
            raise Invalid(cause.message, where=cause.field, causes=[cause])
        shelf = OverlayStore(self.cache.entries)
        rehearsal = self._dry_run(shelf, ask.user, question)
        manifests = query_manifests(question)
        try:
            written = rehearsal.apply_manifests(manifests.combined)
        except LatticeError as error:
            raise manifests.with_lines(error) from error
        world = self._world(question)
        gone = [_deleted_key(each, question.namespace, world) for each in question.delete]
        changes = [
            _decoders[each.key.resource].decode(each.value)
            for each in written
            if each.key.resource in _decoders
        ]
        self._check_names(question, world, changes)
        document = answer_query(
            placement_query(ask.ask, question), world, changes, gone, SystemClock().monotonic
        )
        if isinstance(question, PlanQuery):
            if question.expect:
                self.plan_cache.require_same_outcome(question.expect, document)
            self.plan_cache.add(document)
        ignored = {"ignored": rehearsal.ignored} if rehearsal.ignored else {}
        return {**document, "revision": str(ask.revision), **ignored}, written

    def _check_names(self, question: FleetQuery, world: World, changes: list[Kind]) -> None:
        """Names in the question that mean nothing here, nor in the world that it would be."""
        after = world.with_objects(changes) if changes else world
        declared = {each.name for each in self.cache.entries if each.resource == NAMESPACES}
        known = {DEFAULT_NAMESPACE, *declared, *(namespace for _, namespace, _ in after.objects if namespace)}
        require_namespace(question.namespace, known)
        if isinstance(question, CostQuery) and question.in_namespace:
            require_namespace(question.in_namespace, known)
        if question.latency is not None:
            offers = {*world.supply.offers, *after.supply.offers}
            validate_latency_csv(
                question.latency.csv, question.latency.source, [each.place for each in offers]
            )

    def _world(self, question: FleetQuery) -> World:
        tables = self.pricing_files.current()
        world = self.cache.world(tables)
        if not question.prices and question.latency is None:
            return world
        book, csv, source = tables.overridden_by(question.prices, question.latency)
        return replace(world, price_book=book, latency_csv=csv, latency_source=source)

    def _dry_run(self, shelf: OverlayStore, user: str, question: FleetQuery) -> DryRun:
        api = Api(shelf, self.catalog, SystemClock(), lambda: str(uuid.uuid4()), lambda: "")
        looked_at = frozenset(kind.resource.id for kind in PLACEMENT_INPUT_KINDS)
        return DryRun(
            api,
            shelf,
            looked_at,
            ApplyOptions(user, question.namespace, question.field_manager, question.force),
        )


def _deleted_key(named: PlannedDeletion, namespace: str, world: World) -> ObjectKey:
    kind = next(
        (
            each
            for each in PLACEMENT_INPUT_KINDS
            if each.resource.kind == named.kind and not each.resource.managed_hint
        ),
        None,
    )
    if kind is None:
        known = ", ".join(
            each.resource.kind for each in PLACEMENT_INPUT_KINDS if not each.resource.managed_hint
        )
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
    known = None if adapters == "*" else frozenset(split_comma_list(adapters))
    worker = QueryWorker(PricingFiles(split_comma_list(prices), latency), cache=FleetCache(providers=known))
    while True:
        message = decode_message(inbox.get())
        if isinstance(message, Load):
            worker.cache.apply_load(message)
            continue
        out.write(encode_frame(worker.handle(message)))
        out.flush()
        worker.cache.trim()


if __name__ == "__main__":
    main(sys.argv[1:])
