"""The query process: caches the objects that placement reads, and answers one fleet query at a time.

The process reads messages from standard input and writes results to the original standard output. The process
exits when standard input ends, that is, with the server.
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
from typing import Any, BinaryIO

import msgspec

from lattice.clock import SystemClock
from lattice.errors import Cause, Invalid, LatticeError, NotFound
from lattice.kinds import KINDS
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Kind
from lattice.kinds.meta.json_body import encode
from lattice.placement.feed.placement_input import (
    DECLARED_KINDS,
    KINDS_BY_RESOURCE,
    PlacementInput,
    PricingTables,
    decode_object,
)
from lattice.placement.inputs.latency import validate_latency_csv
from lattice.placement.model.supply import Adapters
from lattice.placement.model.world import ObjectKey, World
from lattice.placement.queries.dispatch import answer_query, require_namespace
from lattice.process_tuning import freeze_heap
from lattice.server.fleet_queries.dry_run import NAMESPACES, ApplyOptions, DryRun, OverlayStore
from lattice.server.fleet_queries.plan_cache import PlanCache
from lattice.server.fleet_queries.pricing_files import PricingFiles, override_tables, split_comma_list
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

# Lowers the priority of the process, so that the server answers short requests first where processors are
# few.
PROCESS_NICENESS = 5

Document = dict[str, Any]


@dataclass
class FleetCache:
    """The objects that the server has sent. The cache decodes an object again only after the revision of the
    object changed."""

    entries: dict[Key, Entry] = field(default_factory=dict)
    # Providers that can create machines, with the runtimes of the machines; None admits every provider.
    providers: Adapters | None = None
    # Keys whose entries changed since the last world.
    _dirty: dict[Key, None] = field(default_factory=dict)
    # The revisions of the objects in the placement input.
    _revisions: dict[Key, int] = field(default_factory=dict)
    _tables: PricingTables | None = None

    def __post_init__(self) -> None:
        self._input = PlacementInput(self.providers)

    def apply_load(self, load: Load) -> None:
        if load.anew:
            self._dirty.update(dict.fromkeys(self.entries))
            self.entries.clear()
        for row in load.rows:
            self._dirty[row.key] = None
            if row.value is None:
                self.entries.pop(row.key, None)
            else:
                self.entries[row.key] = Entry(row.key, row.value, row.revision)

    def world(self, tables: PricingTables) -> World:
        """Return the placement world of the cached objects with these price and latency tables, at the
        current time.

        Budgets cover the calendar month, so the current time decides how much of a budget is spent.
        """
        is_unchanged = not self._dirty and tables is self._tables
        for key in self._dirty:
            kind = KINDS_BY_RESOURCE.get(key.resource)
            if kind is None:
                continue
            entry = self.entries.get(key)
            if entry is None:
                self._input.delete(kind, key.namespace, key.name)
                self._revisions.pop(key, None)
            elif self._revisions.get(key) != entry.revision:
                self._input.put(decode_object(key.resource, entry.value))
                self._revisions[key] = entry.revision
        self._dirty.clear()
        self._tables = tables
        world = self._input.world(tables, datetime.now(UTC))
        if not is_unchanged:
            freeze_heap()
        return world


@dataclass
class QueryWorker:
    """Answers fleet queries from the cache of objects, the pricing files and the cache of plans."""

    pricing_files: PricingFiles
    catalog: Catalog = field(default_factory=lambda: Catalog(KINDS))
    cache: FleetCache = field(default_factory=FleetCache)
    plan_cache: PlanCache = field(default_factory=PlanCache)

    def handle(self, request: QueryRequest) -> QueryResult:
        """Answer a query; an error of any class becomes a result, so that the process survives a failed
        query."""
        try:
            document, writes = self._answer_query(request)
            return QueryResult(200, encode(document), writes=writes if request.ask == APPLY_QUERY else [])
        except LatticeError as error:
            return QueryResult(error.status, encode(status_of(error)))
        # The server logs the traceback; the process goes on, because the next query may succeed.
        except Exception:  # noqa: BLE001
            failure = LatticeError("internal error; the server's log has the details")
            return QueryResult(failure.status, encode(status_of(failure)), traceback.format_exc())

    def _answer_query(self, request: QueryRequest) -> tuple[Document, list[PlannedWrite]]:
        query = parse_query(request.ask, request.body)
        if isinstance(query, OptimiseQuery) and query.time_limit_seconds > request.most:
            cause = Cause(
                "timeLimitSeconds",
                f"Invalid value: {query.time_limit_seconds:g}: the maximum of this server is {request.most:g}",
            )
            raise Invalid(cause.message, where=cause.field, causes=[cause])
        overlay = OverlayStore(self.cache.entries)
        dry_run = DryRun(
            Api(overlay, self.catalog, SystemClock(), lambda: str(uuid.uuid4()), lambda: ""),
            overlay,
            frozenset(KINDS_BY_RESOURCE),
            ApplyOptions(request.user, query.namespace, query.field_manager, query.force),
        )
        manifests = query_manifests(query)
        try:
            writes = dry_run.apply_manifests(manifests.combined)
        except LatticeError as error:
            raise manifests.with_lines(error) from error
        world = self._world(query)
        deletions = [_deleted_key(deletion, query.namespace, world) for deletion in query.delete]
        changes = [
            decode_object(write.key.resource, write.value)
            for write in writes
            if write.key.resource in KINDS_BY_RESOURCE
        ]
        self._check_names(query, world, changes)
        document = answer_query(
            placement_query(request.ask, query), world, changes, deletions, SystemClock().monotonic
        )
        if isinstance(query, PlanQuery):
            if query.expect:
                self.plan_cache.require_same_outcome(query.expect, document)
            self.plan_cache.add(document)
        ignored = {"ignored": dry_run.ignored} if dry_run.ignored else {}
        return {**document, "revision": str(request.revision), **ignored}, writes

    def _check_names(self, query: FleetQuery, world: World, changes: list[Kind]) -> None:
        """Raise an error if the query names an unknown namespace or place.

        Names count as known if the fleet has the name now or would have the name after the changes.
        """
        changed_world = world.with_objects(changes) if changes else world
        declared = {key.name for key in self.cache.entries if key.resource == NAMESPACES}
        namespaces = {
            DEFAULT_NAMESPACE,
            *declared,
            *(namespace for _, namespace, _ in changed_world.objects if namespace),
        }
        require_namespace(query.namespace, namespaces)
        if isinstance(query, CostQuery) and query.in_namespace:
            require_namespace(query.in_namespace, namespaces)
        if query.latency is not None:
            offers = {*world.supply.offers, *changed_world.supply.offers}
            places = [offer.place for offer in offers]
            validate_latency_csv(query.latency.csv, query.latency.source, places)

    def _world(self, query: FleetQuery) -> World:
        tables = self.pricing_files.current()
        world = self.cache.world(tables)
        if not query.prices and query.latency is None:
            return world
        book, csv, source = override_tables(tables, query.prices, query.latency)
        return replace(world, price_book=book, latency_csv=csv, latency_source=source)


def _deleted_key(deletion: PlannedDeletion, namespace: str, world: World) -> ObjectKey:
    kind = next((kind for kind in DECLARED_KINDS if kind.resource.kind == deletion.kind), None)
    if kind is None:
        names = ", ".join(kind.resource.kind for kind in DECLARED_KINDS)
        raise Invalid(
            f"{deletion.kind} is a kind whose deletion cannot be planned",
            where="delete",
            fix=f"use one of {names}",
        )
    object_namespace = (deletion.namespace or namespace) if kind.resource.namespaced else ""
    key = (kind.resource.kind, object_namespace, deletion.name)
    if key not in world.objects:
        where = f" in namespace {object_namespace}" if object_namespace else ""
        raise NotFound(
            f"there is no {deletion.kind} {deletion.name}{where}",
            where="delete",
            fix="check the name and the namespace",
        )
    return key


def _receive(source: BinaryIO, inbox: "queue.SimpleQueue[bytes]") -> None:
    """Read frames on a thread of their own, also during a query, and exit the process when the server closes
    the pipe."""
    while (frame := read_frame(source)) is not None:
        inbox.put(frame)
    # A running query cannot be interrupted, and no server waits for its result: skip all cleanup.
    os._exit(0)


def main(arguments: list[str]) -> None:
    """Run the query process; the arguments are the price files, the latency file and the providers of the
    server."""
    # Ctrl-C reaches the whole process group; the server ends the query process during its own shutdown.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(PROCESS_NICENESS)
    out = os.fdopen(os.dup(1), "wb")
    # Libraries may print to standard output, which carries only results: redirect their output to standard
    # error.
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(os.fdopen(os.dup(0), "rb"), inbox), daemon=True).start()
    prices, latency, adapters = arguments
    providers: Adapters | None = msgspec.json.decode(adapters, type=dict[str, frozenset[str] | None] | None)
    worker = QueryWorker(
        PricingFiles(split_comma_list(prices), latency), cache=FleetCache(providers=providers)
    )
    while True:
        message = decode_message(inbox.get())
        if isinstance(message, Load):
            worker.cache.apply_load(message)
            continue
        out.write(encode_frame(worker.handle(message)))
        out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
