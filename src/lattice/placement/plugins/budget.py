"""Budget: new machines must be paid from budgets that still allow it; a replica on machines already paid for passes."""

from dataclasses import dataclass
from typing import ClassVar

from lattice.engine.plugin import Rejections, Scope, Shortfall
from lattice.engine.table import Rows, Table
from lattice.placement.demand import ReplicaAsk
from lattice.placement.quote import growing
from lattice.placement.reason import fleet_of, hourly, of_rows


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
        fleet, ask = fleet_of(table), self.ask
        quotes = fleet.table.quotes
        if blind := quotes.unknown_in(row, ask.overflow):
            return Shortfall("price", f"known prices, since budget {blind} applies", f"unknown of {quotes.unknown[blind]} that run already")
        serving, rates = quotes.serving(ask.demand).serves[:, row], quotes.catalogue.rate[:, row]
        priced = quotes.catalogue.is_priced[:, row]
        known = [int(rate) for rate, serves, has in zip(rates, serving, priced, strict=True) if serves and has]
        if not known:
            return Shortfall("price", "a known price, since a budget applies", "unknown")
        grows = growing(fleet, row, fleet.group_of(ask.demand, ask.overflow))
        need = min(known) * (1 if grows else fleet.offers[row].first_nodes(ask.demand.rules.min_nodes))
        ledger = min(fleet.ledgers(row, ask.overflow), key=lambda each: fleet.cap(each) - fleet.committed[each])
        have = fleet.cap(ledger) - fleet.committed[ledger]
        return Shortfall(f"budget {ledger}", hourly(need), hourly(max(0, have)), hourly(need - max(0, have)))


@dataclass(frozen=True, slots=True)
class Budget:
    name: ClassVar[str] = "Budget"
    scope: ClassVar[Scope] = "row"

    def applies(self, ask: ReplicaAsk) -> bool:
        return True

    def filter(self, ask: ReplicaAsk, rows: Rows) -> Rejections:
        quote = fleet_of(rows).table.quotes.of(ask)
        return {OverBudget(ask): of_rows(rows, quote.fits & ~quote.has_room & ~quote.affordable)}
