"""Gangs at placement: fewer than the minimum number of replicas of a group of services are never placed."""

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.placement.greedy.place import place
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet


def min_members(gang: str, fleet: Fleet) -> int:
    """Return the minimum number of replicas: the largest that a service of the gang states."""
    return max((demand.min_member for demand in fleet.gangs.get(gang, ())), default=0)


def placed_members(gang: str, fleet: Fleet) -> int:
    """Count the replicas of all services of the gang."""
    return sum(fleet.replicas.count(demand.name) for demand in fleet.gangs.get(gang, ()))


def short_gangs(demands: Sequence[Demand], fleet: Fleet) -> list[str]:
    """Return the gangs of the demands that have fewer replicas in the fleet than their minimum."""
    gangs = sorted({demand.gang for demand in demands if demand.gang})
    return [gang for gang in gangs if placed_members(gang, fleet) < min_members(gang, fleet)]


@dataclass(frozen=True, slots=True)
class GangShortfall:
    """How many replicas of a gang fit together, and which services lack replicas then."""

    gang: str
    minimum: int
    fitting: int
    # By service: replicas that fit, and desired replicas.
    incomplete: tuple[tuple[str, int, int], ...]

    def __str__(self) -> str:
        name = self.gang.rpartition("/")[2]
        text = f"group {name}: need {self.minimum:,} replicas together, {self.fitting:,} fit, "
        text += f"missing {self.minimum - self.fitting:,}"
        parts = [
            f"{service.rpartition('/')[2]} {fits:,} of {desired:,}"
            for service, fits, desired in self.incomplete
        ]
        return f"{text} ({', '.join(parts)})" if parts else f"{text}: its services want no more replicas"


def gang_shortfall(demand: Demand, fleet: Fleet) -> GangShortfall | None:
    """Return why the gang of the demand is not placed; None if enough replicas are placed or fit."""
    minimum = min_members(demand.gang, fleet) if demand.gang else 0
    if placed_members(demand.gang, fleet) >= minimum:
        return None
    with fleet.what_if():
        members = ordered_demands(fleet.gangs[demand.gang])
        for member in members:
            place(member, fleet)
        fitting = placed_members(demand.gang, fleet)
        incomplete = tuple(
            (member.name, fleet.replicas.count(member.name), member.replicas)
            for member in members
            if fleet.replicas.count(member.name) < member.replicas
        )
    return None if fitting >= minimum else GangShortfall(demand.gang, minimum, fitting, incomplete)
