"""The trial fleet: the mutable model of offers, clusters, machines, replicas and ledgers on which placement
tries changes and undoes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

from lattice.engine.table import Flags, Integers
from lattice.placement.inputs.latency import UNKNOWN_RTT_MS, Latencies
from lattice.placement.model.cluster_groups import ClusterGroups
from lattice.placement.model.demand import Demand
from lattice.placement.model.inventory import ClusterInventory
from lattice.placement.model.journal import Attempt, Journal
from lattice.placement.model.machine_catalog import MachineCatalog
from lattice.placement.model.offer import Budget, Offer, OfferTable
from lattice.placement.model.offer_ledgers import OfferLedgers
from lattice.placement.model.replica_index import Assignment, ReplicaIndex
from lattice.placement.model.replica_quotes import Quotes


class FleetTable(OfferTable):
    """The table of offers that the engine passes to placement plugins; through `fleet`, plugins read the rest
    of the trial fleet."""

    def __init__(self, fleet: "Fleet", offers: Iterable[Offer]) -> None:
        super().__init__(offers)
        self.fleet = fleet


class Fleet:
    """The parts of a trial fleet.

    Inside `what_if` or `attempt` one journal records how to undo every change of clusters, machines, replicas
    and lost offers. `offers`, `machines`, `clusters` and `assignments` are containers that the parts own and
    change; all other code only reads them.
    """

    def __init__(
        self,
        offers: Iterable[Offer],
        budgets: Mapping[str, Budget],
        latencies: Latencies,
        dependants: Mapping[str, Sequence[tuple[str, int]]] | None = None,
    ) -> None:
        self._journal = Journal()
        self.table = FleetTable(self, offers)
        self.ledgers = OfferLedgers(self.table, budgets)
        self.inventory = ClusterInventory(self.table, self.ledgers, self._journal)
        self.replicas = ReplicaIndex(self.table, self.inventory, self._journal)
        self.groups = ClusterGroups(self.table, self.inventory, self.replicas)
        self.quotes = Quotes(
            self.table, self.ledgers, self.inventory, self.groups, MachineCatalog(self.table.offers)
        )
        self.latencies = latencies
        # By service: the services that must run near it, each with the largest round trip in milliseconds
        # that it allows.
        self.dependants = dependants or {}
        # Services and workloads that have, or are targets of, a required affinity term.
        self.affinity_services: frozenset[str] = frozenset()
        # Services with whose replicas other services must share machines.
        self.near_targets: frozenset[str] = frozenset()
        # The demands of each gang, by namespace/name of the gang.
        self.gangs: Mapping[str, Sequence[Demand]] = {}
        # Services for which affinity over machines decides which other services share a machine.
        self.counted_services: frozenset[str] = frozenset()
        self.offers = self.table.offers
        self.machines, self.clusters = self.inventory.machines, self.inventory.clusters
        self.assignments = self.replicas.assignments

    def row(self, offer: str) -> int:
        return self.table.row_of[offer]

    @contextmanager
    def with_supply(self, offers: Sequence[Offer], budgets: Sequence[Budget]) -> Iterator[None]:
        """Replace offers and budgets of the same names inside the context, outside of the journal; the exit
        restores offers, budgets and quotes."""
        previous_offers = [self.offers[self.row(offer.name)] for offer in offers]
        previous_budgets = [self.ledgers.budgets[budget.name] for budget in budgets]
        quotes = self.quotes
        try:
            self.replace_supply(offers, budgets)
            if any(
                (old.types, old.limits.gpus) != (new.types, new.limits.gpus)
                for old, new in zip(previous_offers, offers, strict=True)
            ):
                # Cached quotes depend on the machine types.
                self.quotes = quotes.with_catalog(MachineCatalog(self.offers, quotes.catalog.type_names))
            yield
        finally:
            self.replace_supply(previous_offers, previous_budgets)
            self.quotes = quotes

    def replace_supply(self, offers: Iterable[Offer], budgets: Iterable[Budget]) -> None:
        """Replace offers and budgets of the same names, outside of the journal. The machine types of the
        offers must stay as they are, since cached quotes depend on them."""
        affected: set[int] = set()
        for offer in offers:
            affected |= self.table.replace(offer)
        affected |= self.ledgers.replace_budgets(budgets)
        for row in affected:
            self.ledgers.refresh(row)
            self.table.touch_fixed(row)
        self.table.scores.clear()

    @cached_property
    def _rtt_ms(self) -> Integers:
        return self.latencies.matrix([offer.place for offer in self.offers])

    def ms_to_nearest(self, rows: list[int]) -> Integers:
        """Milliseconds from every offer to the nearest offer of the given rows."""
        nearest: Integers = self._rtt_ms[:, rows].min(axis=1)
        return nearest

    def has_unknown_rtt(self, rows: list[int]) -> Flags:
        """The offers whose round trip to every offer of the given rows is unknown."""
        unknown: Flags = self.ms_to_nearest(rows) >= UNKNOWN_RTT_MS
        return unknown

    @contextmanager
    def with_latencies(self, latencies: Latencies) -> Iterator[None]:
        """Replace the latencies inside the context, outside of the journal."""
        previous = self.latencies
        try:
            self._replace_latencies(latencies)
            yield
        finally:
            self._replace_latencies(previous)

    def _replace_latencies(self, latencies: Latencies) -> None:
        if latencies is self.latencies:
            return
        self.latencies = latencies
        # The matrix is computed from the latencies on first use.
        self.__dict__.pop("_rtt_ms", None)
        for row in range(len(self.offers)):
            self.table.touch_fixed(row)
        self.table.scores.clear()

    def mark_lost(self, row: int) -> None:
        """Reject every replica for the offer, as if the offer were deleted."""
        was_lost = bool(self.table.column("lost")[row])
        self._set_lost(row, True)
        self._journal.record_undo(self._set_lost, row, was_lost)

    def _set_lost(self, row: int, is_lost: bool) -> None:
        self.table.set(row, "lost", is_lost, fixed=False)

    def assign(self, assignment: Assignment) -> None:
        self.replicas.assign(assignment)

    def assign_replica(self, demand: Demand, machine: int) -> Assignment:
        """Assign one replica of the demand to the machine."""
        return self.replicas.assign_replica(demand, machine)

    def unassign(self, assignment: Assignment) -> None:
        self.replicas.unassign(assignment)

    def what_if(self) -> AbstractContextManager[None]:
        """A context whose changes are all undone on exit."""
        return self._journal.what_if()

    def attempt(self) -> AbstractContextManager[Attempt]:
        """A context whose changes are undone on exit, unless the attempt is marked as succeeded."""
        return self._journal.attempt()
