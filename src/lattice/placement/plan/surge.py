"""The surge of rolling updates: the machines that exist only while an update replaces replicas, and their
cost at the peak."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.greedy.unschedulable import growable_type, growth_blocker
from lattice.placement.model.current_state import SURGE_PREFIX
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.replica_index import Assignment


@dataclass(frozen=True, slots=True)
class Surge:
    """What the updates of a plan need beside the final state."""

    # Services that are updated with a surge replica.
    services: tuple[str, ...] = ()
    # Machines beyond the final state by cluster, then by node class.
    machines: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Micro-dollars per hour of these machines.
    rate: int = 0
    # By service: why its surge replica gets no machine, so that its update waits.
    blocked: Mapping[str, str] = field(default_factory=dict)


NO_SURGE = Surge()


def surge_of(demands: Iterable[Demand], fleet: Fleet) -> Surge:
    """The surge of updating the services of the demands together, in the final fleet: each runs one replica
    more for a while, in its first node group."""
    extra: dict[str, Counter[str]] = {}
    blocked: dict[str, str] = {}
    names: list[str] = []
    rate = 0
    with fleet.what_if():
        for demand in ordered_demands(demands):
            groups = sorted(
                {
                    (
                        fleet.machines.cluster[assignment.machine].name,
                        fleet.machines.machine_type[assignment.machine].name,
                    )
                    for assignment in fleet.assignments.get(demand.name, ())
                }
            )
            if not groups:
                continue
            names.append(demand.name)
            cluster = fleet.clusters[groups[0][0]]
            rows = [row for row in cluster.machines if fleet.machines.machine_type[row].name == groups[0][1]]
            row = next((row for row in rows if fleet.groups.fits_on_machine(demand, row)), None)
            if row is None:
                kind = growable_type(fleet, cluster, groups[0][1])
                if kind is None:
                    blocker = growth_blocker(demand, fleet, cluster, groups[0][1])
                    shortage = f": need {blocker.need}, have {blocker.have}" if blocker.need else ""
                    blocked[demand.name] = f"{blocker.text}{shortage}"
                    continue
                row = fleet.inventory.add_machine(cluster, kind)
                extra.setdefault(cluster.name, Counter())[kind.name] += 1
                rate += kind.rate
            fleet.assign(
                Assignment(f"{SURGE_PREFIX}{demand.name}", row, tuple(demand.effective_needs.items()))
            )
    return Surge(tuple(names), extra, rate, blocked)
