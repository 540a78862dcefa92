"""A running fleet compared with the state that a plan predicts for it."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from build.service_world import RunningFleet
from lattice.controllers.services.ledger_commit import LedgerCommitter, Payment
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.quantity import dollars_to_micros
from lattice.kinds.node import NODE_CLASS_LABEL, LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.placement.model.costs import releases_due
from lattice.placement.model.supply import pool_account
from lattice.placement.model.world import World
from lattice.placement.plan.plan import FleetState

Placed = dict[tuple[str, str, str], int]  # replicas by pool, cluster and class


async def bind(fleet: RunningFleet, world: World) -> None:
    """Bind each replica to the emptiest machine of its cluster and class with capacity, large replicas first."""
    await fleet.make_nodes()
    model = observed_world(fleet, world).build_fleet()
    machines, taken = model.machines, {name: Counter[str]() for name in model.machines.row_of}
    asked = {name: Counter(dict(seats[0].needs)) for name, seats in model.assignments.items() if seats}
    every = [
        (workload, f"default/{workload.spec.service}")
        for workload in fleet.all(LatticeWorkload)
        if not workload.metadata.deletion_timestamp
    ]
    for item, service in every:
        if item.status.binding and item.status.binding.node in taken:
            taken[item.status.binding.node] += asked[service]

    def fits(node: str, needs: Counter[str]) -> bool:
        row, index = machines.row_of[node], machines.resource_index
        return all(
            taken[node][name] + count <= machines.total(index[name])[row] for name, count in needs.items()
        )

    waiting = [(item, service) for item, service in every if not item.status.binding and service in asked]
    for value, service in sorted(
        waiting, key=lambda found: (-asked[found[1]]["cpu"], -asked[found[1]]["memory"])
    ):
        cell = (value.spec.cluster, value.spec.constraints.node_selector[NODE_CLASS_LABEL])
        nodes = [
            n.metadata.name for n in fleet.all(LatticeNode) if (n.spec.cluster, n.spec.node_class) == cell
        ]
        free = [name for name in nodes if name in taken and fits(name, asked[service])]
        if free:
            node = min(free, key=lambda name: (taken[name]["cpu"], name))
            taken[node] += asked[service]
            await fleet.change(
                value, binding=Binding(node=node), ready=True, actual_state="Running", conditions=()
            )


async def remove_unwanted_machines(fleet: RunningFleet) -> None:
    """Remove machines that no cluster wants, and release their payment."""
    wanted = {cluster.metadata.name: Counter(cluster.spec.nodes) for cluster in fleet.all(LatticeCluster)}
    for node in reversed(fleet.all(LatticeNode)):
        cluster, kind = node.spec.cluster, node.spec.node_class
        alike = [
            node
            for node in fleet.all(LatticeNode)
            if (node.spec.cluster, node.spec.node_class) == (cluster, kind)
        ]
        if len(alike) > wanted[cluster][kind] and not any(
            _is_on(replica, node) for replica in fleet.all(LatticeWorkload)
        ):
            await fleet.remove(LatticeNode, node.metadata.name)
    books = fleet.all(LatticeLedger)
    cells = sorted(
        {
            (cluster, lot.node_class)
            for book in books
            for cluster, lots in book.status.machines.items()
            for lot in lots
        }
    )
    back = [
        item for cell in cells for item in releases_due(books, cell, wanted.get(cell[0], Counter())[cell[1]])
    ]
    if back:
        await LedgerCommitter(fleet.store, fleet.clock).commit_with_charges(Payment([], releases=back))
        await fleet.wait_for_caches()


def _is_on(workload: LatticeWorkload, node: LatticeNode) -> bool:
    return workload.status.binding is not None and workload.status.binding.node == node.metadata.name


async def settle_fleet(fleet: RunningFleet, world: World, *, binding: bool) -> None:
    """Converge until nothing changes: terminating objects are gone, and replicas are bound if `binding`."""
    for _ in range(8):
        revision_before = await fleet.store.revision()
        await fleet.converge()
        if binding:
            await bind(fleet, world)
        await fleet.finish_deletions()
        await remove_unwanted_machines(fleet)
        if await fleet.store.revision() == revision_before:
            return


def has_unschedulable(fleet: RunningFleet) -> bool:
    """Is a replica placed without a node that fits it? It gets another machine or placement after a grace
    period, so the fleet is not settled."""
    return any(replica.status.binding is None for replica in fleet.all(LatticeWorkload))


def placements_of(fleet: RunningFleet) -> dict[str, Placed]:
    return {
        f"default/{service.metadata.name}": {
            (at.pool, at.cluster, at.node): at.replicas for at in service.status.placements
        }
        for service in fleet.all(LatticeService)
        if service.status.placements
    }


def costs(fleet: RunningFleet) -> dict[str, int]:
    """Micro-dollars per hour of each service, from its status."""
    results: dict[str, int] = {}
    for service in fleet.all(LatticeService):
        if service.status.placements:
            results[f"default/{service.metadata.name}"] = sum(
                dollars_to_micros(at.cost.hourly) for at in service.status.placements if at.cost
            )
    return results


def machines(fleet: RunningFleet) -> dict[str, dict[str, int]]:
    return {
        cluster.metadata.name: dict(cluster.spec.nodes)
        for cluster in fleet.all(LatticeCluster)
        if any(cluster.spec.nodes.values())
    }


def ledgers(fleet: RunningFleet) -> dict[str, int]:
    """Micro-dollars per hour that each ledger pays for wanted machines; a machine that is not wanted is paid
    until its removal is confirmed."""
    left = {cluster.metadata.name: dict(cluster.spec.nodes) for cluster in fleet.all(LatticeCluster)}
    results = {}
    for book in fleet.all(LatticeLedger):
        lots = [
            (lot, left.get(cluster, {}).get(lot.node_class, 0))
            for cluster, several in book.status.machines.items()
            for lot in several
        ]
        results[book.metadata.name] = sum(min(lot.count, wanted) * lot.micros for lot, wanted in lots)
    return {name: rate for name, rate in results.items() if rate}


def observed_world(fleet: RunningFleet, world: World) -> World:
    objects = [item for copy in fleet.context.caches for item in copy.objects()]
    return replace(World.of(objects, world.price_book), now=fleet.clock.now())


def check_placements(
    fleet: RunningFleet, said: FleetState, before: dict[str, tuple[Placed, int]], *, in_steps: bool = False
) -> None:
    """Placements equal the plan. A service that stays may get its new share of the cost later: its former
    share holds while other services enter and leave its cluster. If they leave in several steps (`in_steps`),
    it may have the share after one of the steps until the machines are settled."""
    places, shares = placements_of(fleet), costs(fleet)
    assert places == {name: dict(replica_count) for name, replica_count in said.replica_counts.items()}
    for name, share in shares.items():
        had = before.get(name)
        stays = had is not None and had[0] == places[name]
        assert share == said.service_rates.get(name, 0) or (
            stays and had is not None and (in_steps or share == had[1])
        ), name


def current_placements(fleet: RunningFleet) -> dict[str, tuple[Placed, int]]:
    shares = costs(fleet)
    return {name: (places, shares[name]) for name, places in placements_of(fleet).items()}


def by_cell(clusters: Mapping[str, Mapping[str, int]]) -> Counter[tuple[str, str]]:
    return Counter({(name, kind): count for name, kinds in clusters.items() for kind, count in kinds.items()})


def crossed_cells(before: dict[str, tuple[Placed, int]], said: FleetState) -> set[tuple[str, str]]:
    """Cells that replicas leave while others enter: a node stays if the scheduler picks it for an entering
    replica."""
    names = {*before, *said.replica_counts}
    old = {name: Counter(before[name][0]) if name in before else Counter() for name in names}
    new = {name: Counter(said.replica_counts.get(name, {})) for name in names}
    left = {(cluster, kind) for name in names for _, cluster, kind in old[name] - new[name]}
    return left & {(cluster, kind) for name in names for _, cluster, kind in new[name] - old[name]}


def check_machines(fleet: RunningFleet, said: FleetState, before: dict[str, tuple[Placed, int]]) -> None:
    """Machines equal the plan. Unneeded machines go once every replica of their cluster is bound; machines of
    a deleted pool stay, and are paid, while their cluster is in use."""
    assert placements_of(fleet) == {
        name: dict(replica_count) for name, replica_count in said.replica_counts.items()
    }
    actual, planned = by_cell(machines(fleet)), by_cell(said.clusters)
    assert not planned - actual
    assert (actual - planned).keys() <= crossed_cells(before, said)
    if actual != planned:
        return
    paid = Counter(said.fleet.ledgers.committed)
    paid.update({pool_account(pool).ledger_name: rate for pool, rate in said.orphaned.offer_rates.items()})
    assert ledgers(fleet) == {name: rate for name, rate in paid.items() if rate}
