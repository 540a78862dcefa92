"""Which replicas has a service no place for: those that it lacks, or all of them, if it may not stay and finds no other place?"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from lattice.placement.greedy.place_all import stale
from lattice.placement.model.costs_part import run_rate
from lattice.placement.greedy.place import Placement, place, withdraw
from lattice.placement.plan.plan import Settled


@dataclass(frozen=True, slots=True)
class Lack:
    placement: Placement
    freed: int = 0  # micro-dollars per hour that are not paid while its replicas are gone


@contextmanager
def lack(settled: Settled, service: str) -> Iterator[Lack | None]:
    """None: it has its place. Meanwhile the fleet is without replicas that may not stay where they are."""
    fleet, demand = settled.fleet, settled.adrift.fewer(settled.world.demands[service])
    if service in settled.unplaced:
        yield Lack(settled.unplaced[service])
        return
    if stale(demand, fleet) is None:
        yield None
        return
    with fleet.what_if():
        paid = sum(run_rate(fleet).values())
        withdraw(fleet, list(fleet.seats.get(service, ())))
        with fleet.what_if():
            placement = place(demand, fleet)
        yield None if placement.is_complete else Lack(placement, paid - sum(run_rate(fleet).values()))
