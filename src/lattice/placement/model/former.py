"""What is a machine whose class its offer has stopped listing, and what is paid for it?"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from lattice.kinds.meta.base import Kind
from lattice.kinds.ledger import LatticeLedger
from lattice.placement.model.offer import MachineType, Offer
from lattice.placement.inputs.price_book import Price
from lattice.placement.model.supply import Classes, owned


@dataclass(frozen=True, slots=True)
class Former:
    """For one look at what is there: a lot is used up machine by machine."""

    classes: Classes
    lots: dict[
        tuple[str, str], list[int]
    ]  # micro-dollars per hour of each machine by cluster and class, the dearest last

    @staticmethod
    def of(objects: Iterable[Kind], classes: Classes) -> "Former":
        """Nested budgets all pay for one machine: the first ledger that has the cluster is enough."""
        paid: dict[str, dict[tuple[str, str], list[int]]] = {}
        for ledger in sorted(
            (each for each in objects if isinstance(each, LatticeLedger)), key=lambda each: each.metadata.name
        ):
            for cluster, lots in ledger.status.machines.items():
                if cluster not in paid:
                    paid[cluster] = {}
                    for lot in sorted(lots, key=lambda each: each.micros):
                        paid[cluster].setdefault((cluster, lot.node_class), []).extend(
                            [lot.micros] * lot.count
                        )
        return Former(classes, {name: rates for found in paid.values() for name, rates in found.items()})

    def kind(self, offer: Offer, cluster: str, name: str) -> MachineType:
        """At what the ledger pays, else at what the class would cost there; a price that nobody knows stays unknown."""
        known = self._class(name, offer.place.provider, offer.place.region)
        if offer.is_static:
            return owned(known)
        lots = self.lots.get((cluster, name))
        if not lots:
            return known
        micros = lots.pop()
        return replace(known, rate=micros, price=Price(micros, "ledger"))

    def rate(self, lot: tuple[str, str], provider: str, region: str) -> int:
        """Of one more machine of a cluster and class, in an offer that is gone."""
        lots = self.lots.get(lot)
        return lots.pop() if lots else self._class(lot[1], provider, region).rate

    def _class(self, name: str, provider: str, region: str) -> MachineType:
        return next(iter(self.classes.types([name], provider, region)), MachineType(name, {}, 0))
