"""Which machines does a decision have paid, from which budgets, and what do budgets pay for already?"""

from collections import Counter
from collections.abc import Iterable, Mapping

from lattice.kinds.ledger import Account, LatticeLedger, Lot
from lattice.placement.model.fleet import Cluster, Fleet
from lattice.placement.inputs.ledger_math import Charge
from lattice.lifecycle.replica_template import Cell

Paid = Mapping[str, Counter[Cell]]  # machines by ledger, then by cluster and class


def paid_for(ledgers: Iterable[LatticeLedger]) -> dict[str, Counter[Cell]]:
    found: dict[str, Counter[Cell]] = {}
    for ledger in ledgers:
        counts = found[ledger.metadata.name] = Counter()
        for cluster, lots in ledger.status.machines.items():
            for lot in lots:
                counts[cluster, lot.node_class] += lot.count
    return found


def charges(fleet: Fleet, cluster: Cluster, wanted: Mapping[str, int], paid: Paid) -> list[Charge]:
    """What each budget does not pay for yet. A machine that is on its way out is paid for still: its place is taken for nothing."""
    prices = {each.name: each.rate for each in fleet.offers[cluster.row].types}
    found = []
    for kind, count in sorted(wanted.items()):
        lacking: dict[int, list[Account]] = {}
        for ledger in fleet.ledgers(cluster.row, cluster.overflow):
            short = count - paid.get(ledger, Counter())[cluster.name, kind]
            if short > 0 and kind in prices:
                lacking.setdefault(short, []).append(fleet.budgets[ledger].account)
        found += [
            Charge(tuple(who), cluster.name, Lot(node_class=kind, count=short, micros=prices[kind]))
            for short, who in lacking.items()
        ]
    return found


def releases(ledgers: Iterable[LatticeLedger], cell: Cell, keep: int) -> list[Charge]:
    """What budgets give back so that each pays for no more than so many: the dearest first, since what stays should cost least."""
    cluster, kind = cell
    found = []
    for ledger in ledgers:
        lots = [each for each in ledger.status.machines.get(cluster, ()) if each.node_class == kind]
        left = sum(each.count for each in lots) - keep
        for lot in sorted(lots, key=lambda each: -each.micros):
            if (count := min(lot.count, left)) > 0:
                found.append(
                    Charge(
                        (ledger.spec.budget,), cluster, Lot(node_class=kind, count=count, micros=lot.micros)
                    )
                )
                left -= count
    return found
