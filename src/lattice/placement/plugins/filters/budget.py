"""Budget: new machines must fit into every budget that pays for them; a replica on existing machines passes."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.kinds.meta.quantity import format_per_hour
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.plugins.rejection_reasons import fleet_of, select_rows


@dataclass(frozen=True, eq=False)
class OverBudget:
    """The cheapest purchase that the replica needs exceeds a budget of the offer."""

    ask: ReplicaAsk
    plugin: str = "Budget"

    def __eq__(self, value: object) -> bool:
        # Asks of equal shape share one reason.
        return isinstance(value, OverBudget) and value.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash(self.ask.shape)

    def summary(self) -> str:
        return "over budget"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The shortfall of the budget with the least headroom."""
        fleet, ask = fleet_of(table), self.ask
        ledger = min(
            fleet.ledgers.paying_for(row, ask.overflow_source),
            key=lambda name: fleet.ledgers.commit_cap(name) - fleet.ledgers.committed[name],
        )
        return _short(fleet, ledger, min_purchase_rate(ask, fleet, row))

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        return exceeded_budgets(self.ask, fleet_of(table), row) or [self.detail(table, row)]


def exceeded_budgets(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[Shortfall]:
    """The shortfall of every budget that the next purchase would exceed."""
    return [_short(fleet, ledger, need) for ledger, need in exceeding_ledgers(ask, fleet, row)]


def exceeding_ledgers(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[tuple[str, int]]:
    """The ledgers that the next purchase would exceed, with its rate in micro-dollars per hour."""
    need = min_purchase_rate(ask, fleet, row)
    return [
        (ledger, need)
        for ledger in fleet.ledgers.paying_for(row, ask.overflow_source)
        if need and fleet.ledgers.commit_cap(ledger) - fleet.ledgers.committed[ledger] < need
    ]


def _short(fleet: Fleet, ledger: str, need: int) -> Shortfall:
    # A lowered budget may be exceeded already: the headroom is shown as 0.
    have = max(0, fleet.ledgers.commit_cap(ledger) - fleet.ledgers.committed[ledger])
    return Shortfall(
        f"budget of {fleet.ledgers.budgets[ledger].account}",
        format_per_hour(need),
        format_per_hour(have),
        format_per_hour(need - have),
    )


def min_purchase_rate(ask: ReplicaAsk, fleet: Fleet, row: int) -> int:
    """Micro-dollars per hour of the smallest purchase: the cheapest feasible type, else the cheapest type; 0
    if no price is known."""
    quotes = fleet.quotes
    can_host, catalog = quotes.machine_fit(ask.demand).can_host[:, row], quotes.catalog
    is_priced = (can_host if can_host.any() else catalog.is_offered[:, row]) & catalog.is_priced[:, row]
    need = min((int(rate) for rate in catalog.rate[is_priced, row]), default=0)
    # A cluster that grows takes one machine; a new cluster starts with its minimum.
    grows = fleet.inventory.growable_clusters(
        row, fleet.groups.growable(ask.demand, ask.overflow_source, row)
    )
    return need * (1 if grows else fleet.offers[row].initial_nodes(ask.demand.rules.min_nodes))


@dataclass(frozen=True, eq=False)
class UnknownPrice:
    """A budget applies, and only an unknown price prevents the purchase: the price of a feasible machine
    type, or of machines that the budget already pays for."""

    ask: ReplicaAsk
    plugin: str = "Budget"

    def __eq__(self, value: object) -> bool:
        # Asks of equal shape share one reason.
        return isinstance(value, UnknownPrice) and value.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash((self.plugin, self.ask.shape))

    def summary(self) -> str:
        return "without a known price"

    def detail(self, table: Table, row: int) -> Shortfall:
        """The classes without a price, and the fix that states the price."""
        fleet, ask = fleet_of(table), self.ask
        classes, budget, unknown = unpriced_classes(ask, fleet, row), "a budget", "unknown"
        ledger = fleet.ledgers.unpriced_ledger(row, ask.overflow_source)
        if ledger:
            classes = _running_unpriced_classes(fleet, ledger)
            budget = f"the budget of {fleet.ledgers.budgets[ledger].account}"
            count = fleet.ledgers.unpriced_machines[ledger]
            unknown = f"unknown for {count} running machine{'' if count == 1 else 's'}"
        missing = f"a price: set costPerHour.{fleet.offers[row].place.provider} of the class, or provide a price file"
        return Shortfall(
            f"price of {' and '.join(classes)}", f"a known price, because {budget} applies", unknown, missing
        )


def unpriced_classes(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[str]:
    """Names of the feasible classes in the offer without a known price."""
    quotes = fleet.quotes
    unknown = quotes.machine_fit(ask.demand).can_host[:, row] & ~quotes.catalog.is_priced[:, row]
    return sorted(
        name for name, is_unknown in zip(quotes.catalog.type_names, unknown, strict=True) if is_unknown
    )


def _running_unpriced_classes(fleet: Fleet, ledger: str) -> list[str]:
    """Names of the classes without a known price whose existing machines the ledger pays for."""
    machines = fleet.machines
    classes: set[str] = set()
    for machine, kind in machines.machine_type.items():
        cluster = machines.cluster[machine]
        if not kind.is_priced and ledger in fleet.ledgers.paying_for(
            cluster.offer_row, cluster.overflow_source
        ):
            classes.add(kind.name)
    return sorted(classes)


@dataclass(frozen=True, slots=True)
class BudgetFilter:
    """Filter plugin: rejects offers whose limits allow a purchase that the budgets do not."""

    name: ClassVar[str] = "Budget"
    # The answer follows the usage and the committed money of the offer.
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quotes = fleet_of(rows).quotes
        quote = quotes.quote_for(ask)
        # An offer beyond its limits is rejected by Capacity, so every offer has one reason.
        rejected = quote.within_limits & ~quote.has_free_capacity & ~quote.affordable
        if not quotes.has_unknown_prices or "budget" in ask.demand.ignored_limits:
            return {OverBudget(ask): select_rows(rows, rejected)}
        # If the purchase passes without the price rule, the unknown price is the reason, not the budget.
        unpriced = rejected
        if rejected.any():
            demand = replace(ask.demand, ignored_limits=ask.demand.ignored_limits | {"prices"})
            unpriced = rejected & quotes.quote_for(replace(ask, demand=demand)).affordable
        return {
            OverBudget(ask): select_rows(rows, rejected & ~unpriced),
            UnknownPrice(ask): select_rows(rows, unpriced),
        }
