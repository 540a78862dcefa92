"""The surge of rolling updates: the machines that exist only while an update replaces replicas, and their
cost at the peak."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from lattice.lifecycle.replica_template import NodeGroupKey
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.greedy.unschedulable import growth_blocker, machine_type_for, node_group_of
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


def surge_of(
    demands: Iterable[Demand], fleet: Fleet, previous_groups: Mapping[str, Collection[NodeGroupKey]]
) -> Surge:
    """The surge of updating the services of the demands together, in the final fleet: each runs one replica
    more for a while, in one of its node groups after the other. A machine that was bought for it stays until the
    whole update ends. In a node group without replicas before the update, the new ones need no surge."""
    extra: dict[str, Counter[str]] = {}
    blocked: dict[str, str] = {}
    names: list[str] = []
    rate = 0
    with fleet.what_if():
        for demand in ordered_demands(demands):
            groups = sorted(
                {node_group_of(fleet, replica) for replica in fleet.assignments.get(demand.name, ())}
            )
            names += [demand.name] if groups else []
            for cluster_name, node_class in groups:
                if (cluster_name, node_class) not in previous_groups.get(demand.name, ()):
                    continue
                cluster = fleet.clusters[cluster_name]
                rows = [
                    row for row in cluster.machines if fleet.machines.machine_type[row].name == node_class
                ]
                row = next((row for row in rows if fleet.groups.fits_on_machine(demand, row)), None)
                if row is None:
                    kind = machine_type_for(demand, fleet, cluster, node_class)
                    if kind is None:
                        blocker = growth_blocker(demand, fleet, cluster, node_class)
                        shortage = f": need {blocker.need}, have {blocker.have}" if blocker.need else ""
                        blocked[demand.name] = f"{blocker.text}{shortage}"
                        break
                    row = fleet.inventory.add_machine(cluster, kind)
                    extra.setdefault(cluster.name, Counter())[kind.name] += 1
                    rate += kind.rate
                needs = tuple(demand.effective_needs.items())
                fleet.assign(Assignment(f"{SURGE_PREFIX}{demand.name}", row, needs))
    return Surge(tuple(names), extra, rate, blocked)
