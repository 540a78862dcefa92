"""Budget: new machines must be paid from budgets that still allow it; a replica on machines already paid for passes."""

from dataclasses import dataclass, replace
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.placement.model.demand import ReplicaAsk
from lattice.placement.model.fleet import Fleet
from lattice.placement.inputs.ledger_math import per_hour
from lattice.placement.model.quotes import Quotes, growing
from lattice.placement.model.reasons import fleet_of, of_rows


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
            fleet.ledgers(row, ask.overflow), key=lambda each: fleet.cap(each) - fleet.committed[each]
        )
        return _short(fleet, ledger, cheapest(ask, fleet, row))

    def shortfalls(self, table: Table, row: int) -> list[Shortfall]:
        return overdrawn(self.ask, fleet_of(table), row) or [self.detail(table, row)]


def overdrawn(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[Shortfall]:
    """Every budget that the next machine would pass."""
    need = cheapest(ask, fleet, row)
    return [
        _short(fleet, each, need)
        for each in fleet.ledgers(row, ask.overflow)
        if need and fleet.cap(each) - fleet.committed[each] < need
    ]


def _short(fleet: Fleet, ledger: str, need: int) -> Shortfall:
    have = max(0, fleet.cap(ledger) - fleet.committed[ledger])
    return Shortfall(
        f"budget of {fleet.budgets[ledger].account}", per_hour(need), per_hour(have), per_hour(need - have)
    )


def cheapest(ask: ReplicaAsk, fleet: Fleet, row: int) -> int:
    """What has to be bought at least; where no class would do, of any class. 0: nobody knows."""
    need = min(_known_rates(ask, fleet, row), default=0)
    grows = growing(fleet, row, fleet.growing_groups(ask.demand, ask.overflow, row))
    return need * (1 if grows else fleet.offers[row].first_nodes(ask.demand.rules.min_nodes))


def _known_rates(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[int]:
    quotes = fleet.table.quotes
    serving, catalogue = quotes.serving(ask.demand).serves[:, row], quotes.catalogue
    known = (serving if serving.any() else catalogue.is_there[:, row]) & catalogue.is_priced[:, row]
    return [int(rate) for rate in catalogue.rate[known, row]]


@dataclass(frozen=True, eq=False)
class Unpriced:
    """A budget applies, and nobody knows what machines cost that would do, or that are paid from it already."""

    ask: ReplicaAsk
    plugin: str = "Budget"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unpriced) and other.ask.shape == self.ask.shape

    def __hash__(self) -> int:
        return hash((self.plugin, self.ask.shape))

    def summary(self) -> str:
        return "without a known price"

    def detail(self, table: Table, row: int) -> Shortfall:
        """Which class has none, and how to give it one."""
        fleet, ask = fleet_of(table), self.ask
        quotes = fleet.table.quotes
        blind = quotes.unknown_in(row, ask.overflow)
        classes = running_unpriced(fleet, blind) if blind else unpriced_classes(ask, fleet, row)
        whose = f"the budget of {fleet.budgets[blind].account}" if blind else "a budget"
        unknown = f"unknown of {quotes.unknown[blind]} that run already" if blind else "unknown"
        missing = (
            f"a price: set costPerHour.{fleet.offers[row].place.provider} of the class, or give a price file"
        )
        return Shortfall(
            f"price of {' and '.join(classes)}", f"a known price, since {whose} applies", unknown, missing
        )


def unpriced_classes(ask: ReplicaAsk, fleet: Fleet, row: int) -> list[str]:
    """Classes that would do there, if their prices were known."""
    quotes = fleet.table.quotes
    unknown = quotes.serving(ask.demand).serves[:, row] & ~quotes.catalogue.is_priced[:, row]
    return sorted(name for name, has_none in zip(quotes.catalogue.names, unknown, strict=True) if has_none)


def running_unpriced(fleet: Fleet, ledger: str) -> list[str]:
    machines = fleet.machines
    unknown = ((each, machines.cluster[each]) for each, kind in machines.kind.items() if not kind.is_priced)
    return sorted(
        {
            machines.kind[each].name
            for each, cluster in unknown
            if ledger in fleet.ledgers(cluster.row, cluster.overflow)
        }
    )


@dataclass(frozen=True, slots=True)
class Budget:
    name: ClassVar[str] = "Budget"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quotes = fleet_of(rows).table.quotes
        quote = quotes.of(ask)
        refused = quote.fits & ~quote.has_room & ~quote.affordable
        if not quotes.is_blind or "budget" in ask.demand.ignoring:
            return {OverBudget(ask): of_rows(rows, refused)}
        blind = refused & _were_prices_known(ask, quotes) if refused.any() else refused
        return {OverBudget(ask): of_rows(rows, refused & ~blind), Unpriced(ask): of_rows(rows, blind)}


def _were_prices_known(ask: ReplicaAsk, quotes: Quotes) -> Flags:
    """Where something would be affordable, were it free."""
    demand = ask.demand
    return quotes.of(replace(ask, demand=replace(demand, ignoring=demand.ignoring | {"prices"}))).affordable
