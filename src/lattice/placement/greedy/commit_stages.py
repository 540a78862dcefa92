"""Every service to its place, one after the other, in steps that can each be written and paid for by itself.

The order and the answers are those of `plan`. What it may not count on is what others still hold: machines leave the fleet only where
everything that is seen is where it is meant to be.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.placement.greedy.orphaned import Stranded, fewer, stranded
from lattice.placement.greedy.place_all import groups, in_order, outgrown, place_together
from lattice.placement.model.demand import Demand
from lattice.placement.model.fleet import Fleet
from lattice.placement.greedy.scale_down import surplus
from lattice.placement.greedy.place import Placement
from lattice.placement.greedy.unschedulable import Relief, in_advance, relieve
from lattice.lifecycle.replica_template import Cell
from lattice.lifecycle.replica_state import Seen
from lattice.placement.greedy.machine_choice import class_counts, trim
from lattice.placement.model.world import World

Wanted = Mapping[str, Counter[str]]  # machines by cluster, then by class


@dataclass(frozen=True, slots=True)
class Stage:
    """Services that are written together, and the machines that their clusters have by then."""

    services: tuple[str, ...]
    clusters: Wanted


@dataclass
class Decided:
    world: World
    fleet: Fleet
    placements: dict[str, Placement] = field(default_factory=dict)  # of services that lacked replicas
    stages: list[Stage] = field(default_factory=list)
    reliefs: dict[str, list[Relief]] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)  # clusters whose machines all stay for now
    in_advance: frozenset[Cell] = (
        frozenset()
    )  # where a machine is paid for before the one that it replaces is gone
    stranded: Stranded = field(default_factory=dict)  # replicas that run on where nothing is offered any more

    @property
    def wanted(self) -> Wanted:
        """In the end."""
        return {name: class_counts(self.fleet, each) for name, each in self.fleet.clusters.items()}

    def note(self, services: Sequence[str]) -> None:
        """As it is now. Who was noted before is written only once, with the last of it."""
        fresh = frozenset(services)
        kept = [
            Stage(tuple(each for each in stage.services if each not in fresh), stage.clusters)
            for stage in self.stages
        ]
        machines, clusters = self.fleet.machines, {}
        for name in services:
            for seat in self.fleet.seats.get(name, ()):
                cluster = machines.cluster[seat.machine]
                clusters[cluster.name] = cluster
        touched = {name: class_counts(self.fleet, each) for name, each in clusters.items()}
        self.stages = [*(stage for stage in kept if stage.services), Stage(tuple(services), touched)]


def decide_stages(
    world: World,
    seen: Seen,
    *,
    keep: int = 1,
    but: Collection[str] = (),
    too_dear: frozenset[Cell] = frozenset(),
) -> Decided:
    """Fewer where fewer are wanted, more where more are; the rest stays where it is. `but`: services that get no more; `too_dear`: where
    a machine that is wanted was refused, so that whoever waits for it looks elsewhere."""
    fleet = world.fleet()
    decided = Decided(world, fleet, unsettled=set(seen.unsettled))
    for cluster in fleet.clusters.values():
        if not cluster.machines:
            cluster.max_nodes = 0  # given up: it comes to no new machines, and its number is not given again
    for name in sorted(seen.updated & world.demands.keys()):
        if outgrowing := outgrown(world.demands[name], fleet):
            decided.unsettled.update(fleet.machines.cluster[seat.machine].name for seat in outgrowing)
            for seat in outgrowing:
                fleet.unseat(seat)
    decided.in_advance = in_advance(fleet, seen) - too_dear
    for name in sorted(seen.stuck.keys() & world.demands.keys()):
        stuck = Counter(
            {cell: count for cell, count in seen.stuck[name].items() if cell not in decided.in_advance}
        )
        if name not in but and (found := relieve(world.demands[name], fleet, stuck, seen)):
            decided.reliefs[name] = found
            decided.note([name])
            decided.unsettled.update(each.cell[0] for each in found)
    decided.stranded = stranded(world, fleet, seen.stuck)
    _arrange(
        decided,
        {name: fewer(each, decided.stranded) for name, each in world.demands.items() if name not in but},
        keep,
    )
    _leave_out(decided)
    return decided


def _leave_out(decided: Decided) -> None:
    """Machines that came with one service, and that another made needless, are not bought at all."""
    last = decided.wanted
    for at, stage in enumerate(decided.stages):
        kept = {name: counts & last[name] for name, counts in stage.clusters.items() if name in last}
        decided.stages[at] = Stage(stage.services, kept)


def _arrange(decided: Decided, demands: Mapping[str, Demand], keep: int) -> None:
    """As `arrange_all` does: a late one may open an overflow for an early one, and machines that nobody needs any more leave room."""
    fleet, wanted = decided.fleet, demands
    before = -1
    while before != fleet.replicas:
        before = fleet.replicas if decided.placements else -1
        _withdraw(wanted, decided)
        found = _place(wanted, decided, keep)
        trim(fleet, [name for name in fleet.clusters if name not in decided.unsettled])
        wanted = {
            name: wanted[name] for name, each in found.items() if each.missing and not each.demand.problem
        }
        if not wanted:
            break


def _withdraw(wanted: Mapping[str, Demand], decided: Decided) -> None:
    """Whoever goes is there until it has gone: its machine stays for now, unless it has none yet."""
    fleet = decided.fleet
    for demand in in_order(wanted.values()):
        leaving = surplus(demand, fleet)
        if not leaving:
            continue
        clusters = sorted({fleet.machines.cluster[seat.machine].name for seat in leaving})
        for seat in reversed(leaving):
            fleet.unseat(seat)
        decided.note([demand.name])
        decided.unsettled.update(clusters)


def _place(wanted: Mapping[str, Demand], decided: Decided, keep: int) -> dict[str, Placement]:
    fleet = decided.fleet
    lacking = {
        name: each
        for name, each in wanted.items()
        if len(fleet.seats.get(name, ())) < each.replicas or each.problem
    }
    found: dict[str, Placement] = {}
    for group in groups(lacking):
        for placement in place_together(group, fleet, keep=keep):
            found[placement.demand.name] = placement
        decided.note([each.name for each in group])
    decided.placements |= found
    return found
