"""The scheduler binds all that placement placed: affinity over nodes is sized by the one and met by the other."""

from build.affinity import apart, near
from build.objects import make_object
from build.worlds import a_class, a_pool, a_service, a_world
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lattice.kinds.meta.base import OwnerReference
from lattice.kinds.node import NODE_CLASS_LABEL, LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_template import (
    build_workload,
    desired_node_groups,
    in_node_group,
    planned_machines,
    workload_template,
)
from lattice.placement.greedy.place_all import place_all
from lattice.placement.model.fleet import Fleet
from lattice.placement.status.fleet_status import with_placement
from lattice.scheduling.cycle.profile import preset
from lattice.scheduling.offline.simulate import SimulationOptions, SimulationReport, simulate

OWNER = OwnerReference(api_version="v1", kind="LatticeService", name="s", uid="u")


def nodes_of(fleet: Fleet) -> list[LatticeNode]:
    """A node for every machine of the fleet."""
    nodes = []
    for row, cluster in fleet.machines.cluster.items():
        kind, offer = fleet.machines.machine_type[row], fleet.offers[cluster.offer_row]
        labels = {NODE_CLASS_LABEL: kind.name}
        spec = {"cluster": cluster.name, "nodeClass": kind.name, "pool": offer.name}
        status = {"allocatable": dict(kind.size), "runtimes": ["container", "process"]}
        nodes.append(make_object(LatticeNode, f"n{row}", meta={"labels": labels}, spec=spec, status=status))
    return nodes


def replicas_of(service: LatticeService) -> list[LatticeWorkload]:
    template, machines = workload_template(service), planned_machines(service)
    return [
        build_workload(service, in_node_group(template, group, machines.get(group)), slot, OWNER)
        for slot, group in enumerate(desired_node_groups(service).elements())
    ]


def bound_as_placed(*services: LatticeService) -> tuple[Fleet, SimulationReport]:
    """The fleet with the services placed, and what the scheduler does on its machines."""
    world = a_world(
        a_pool("p", classes=["small", "big"]),
        a_class("small", cores=2, price=0.1),
        a_class("big", cores=4, price=0.3),
        *services,
    )
    fleet = world.build_fleet()
    place_all(world.demands.values(), fleet)
    placed = [with_placement(service, fleet, None) for service in world.services.values()]
    workloads = [workload for service in placed for workload in replicas_of(service)]
    return fleet, simulate(nodes_of(fleet), workloads, SimulationOptions(preset("balanced")))


def unbound(report: SimulationReport) -> list[str]:
    return [f"{name}: {group.reason}" for group in report.unschedulable for name in group.names]


def test_replicas_stay_on_planned_machines() -> None:
    """Spread over both machines, the replicas of a would leave none for b."""
    _, report = bound_as_placed(
        a_service("a", replicas=2, cores=1, affinity=apart("b")), a_service("b", replicas=2, cores=1)
    )
    assert unbound(report) == []


def test_replicas_find_the_machines_they_must_share() -> None:
    fleet, report = bound_as_placed(
        a_service("a", replicas=3, cores=1), a_service("b", replicas=3, cores=1, affinity=near("a", "node"))
    )
    assert unbound(report) == []
    assert len(fleet.machines.cluster) == 3


NAMES = ("a", "b", "c")


@settings(max_examples=100, deadline=None)
@given(
    replicas=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    excluded=st.lists(st.lists(st.sampled_from(NAMES), max_size=2, unique=True), min_size=3, max_size=3),
    cores=st.sampled_from([0.5, 1, 2]),
)
def test_scheduler_binds_what_placement_placed(
    replicas: list[int], excluded: list[list[str]], cores: float
) -> None:
    stated = [
        a_service(name, replicas=count, cores=cores, affinity=apart(*names) if names else None)
        for name, count, names in zip(NAMES, replicas, excluded, strict=True)
    ]
    fleet, report = bound_as_placed(*stated)
    assume(fleet.replicas.total == sum(replicas))
    assert unbound(report) == []
