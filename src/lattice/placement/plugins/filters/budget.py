"""Budget: new machines must be paid from budgets that still allow it; a replica on machines already paid for passes."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.inputs.ledger_math import format_per_hour
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.quotes import Quotes, growable_clusters
from lattice.placement.model.rejection_reasons import fleet_of, select_rows


@dataclass(frozen=True, eq=False)
class OverBudget:
    ask: ReplicaAsk
    plugin: str = "Budget"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OverBudget) and other.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash(self.ask.shape)

    def summary(self) -> str:
        return "over budget"

    def detail(self, table: Table, row: int) -> Shortfall:
        """Of the budget that has least left."""
        fleet, ask = fleet_of(table), self.ask
        ledger = min(
            fleet.ledgers(row, ask.overflow_source),
            key=lambda each: fleet.commit_cap(each) - fleet.committed[each],
        )
        return _short(fleet, ledger, min_purchase_rate(ask, fleet, row))

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        return exceeded_budgets(self.ask, fleet_of(table), row) or [self.detail(table, row)]


def exceeded_budgets(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[Shortfall]:
    """Every budget that the next machine would pass."""
    need = min_purchase_rate(ask, fleet, row)
    return [
        _short(fleet, each, need)
        for each in fleet.ledgers(row, ask.overflow_source)
        if need and fleet.commit_cap(each) - fleet.committed[each] < need
    ]


def _short(fleet: Fleet, ledger: str, need: int) -> Shortfall:
    have = max(0, fleet.commit_cap(ledger) - fleet.committed[ledger])
    return Shortfall(
        f"budget of {fleet.budgets[ledger].account}",
        format_per_hour(need),
        format_per_hour(have),
        format_per_hour(need - have),
    )


def min_purchase_rate(ask: ReplicaAsk, fleet: Fleet, row: int) -> int:
    """What has to be bought at least; where no class would do, of any class. 0: nobody knows."""
    need = min(_priced_rates(ask, fleet, row), default=0)
    grows = growable_clusters(fleet, row, fleet.growable_groups(ask.demand, ask.overflow_source, row))
    return need * (1 if grows else fleet.offers[row].initial_nodes(ask.demand.rules.min_nodes))


def _priced_rates(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[int]:
    quotes = fleet.table.quotes
    serving, catalogue = quotes.machine_fit(ask.demand).can_host[:, row], quotes.catalog
    known = (serving if serving.any() else catalogue.is_offered[:, row]) & catalogue.is_priced[:, row]
    return [int(rate) for rate in catalogue.rate[known, row]]


@dataclass(frozen=True, eq=False)
class UnknownPrice:
    """A budget applies, and nobody knows what machines cost that would do, or that are paid from it already."""

    ask: ReplicaAsk
    plugin: str = "Budget"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownPrice) and other.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash((self.plugin, self.ask.shape))

    def summary(self) -> str:
        return "without a known price"

    def detail(self, table: Table, row: int) -> Shortfall:
        """Which class has none, and how to give it one."""
        fleet, ask = fleet_of(table), self.ask
        quotes = fleet.table.quotes
        blind = quotes.unpriced_ledger(row, ask.overflow_source)
        classes = running_unpriced_classes(fleet, blind) if blind else unpriced_classes(ask, fleet, row)
        whose = f"the budget of {fleet.budgets[blind].account}" if blind else "a budget"
        unknown = f"unknown of {quotes.unpriced_machines[blind]} that run already" if blind else "unknown"
        missing = (
            f"a price: set costPerHour.{fleet.offers[row].place.provider} of the class, or give a price file"
        )
        return Shortfall(
            f"price of {' and '.join(classes)}", f"a known price, since {whose} applies", unknown, missing
        )


def unpriced_classes(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[str]:
    """Classes that would do there, if their prices were known."""
    quotes = fleet.table.quotes
    unknown = quotes.machine_fit(ask.demand).can_host[:, row] & ~quotes.catalog.is_priced[:, row]
    return sorted(name for name, has_none in zip(quotes.catalog.type_names, unknown, strict=True) if has_none)


def running_unpriced_classes(fleet: Fleet, ledger: str) -> list[str]:
    machines = fleet.machines
    unknown = (
        (each, machines.cluster[each]) for each, kind in machines.machine_type.items() if not kind.is_priced
    )
    return sorted(
        {
            machines.machine_type[each].name
            for each, cluster in unknown
            if ledger in fleet.ledgers(cluster.offer_row, cluster.overflow_source)
        }
    )


@dataclass(frozen=True, slots=True)
class BudgetFilter:
    name: ClassVar[str] = "Budget"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quotes = fleet_of(rows).table.quotes
        quote = quotes.quote_for(ask)
        refused = quote.within_limits & ~quote.has_free_capacity & ~quote.affordable
        if not quotes.has_unknown_prices or "budget" in ask.demand.ignored_limits:
            return {OverBudget(ask): select_rows(rows, refused)}
        blind = refused & _affordable_if_priced(ask, quotes) if refused.any() else refused
        return {
            OverBudget(ask): select_rows(rows, refused & ~blind),
            UnknownPrice(ask): select_rows(rows, blind),
        }


def _affordable_if_priced(ask: ReplicaAsk, quotes: Quotes) -> Flags:
    """Where something would be affordable, were it free."""
    demand = ask.demand
    return quotes.quote_for(
        replace(ask, demand=replace(demand, ignored_limits=demand.ignored_limits | {"prices"}))
    ).affordable
