"""Cost of a fleet ÷ the least possible (Q3): rules for services as they arrive, one re-plan of all, and the optimiser.

The rules are replayed in plain Python, apart from the product, to see which rule is worth having. "Static first" means that a replica goes
to a data center that has room before it goes to a cloud; which data center is what the rules differ in. Run: python -m bench.q3 --help
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.instances import DataCenter, Instance, Service, load
from bench.optimum import ENOUGH, KEPT, figures_of
from bench.optimum import solve as optimum
from lattice.placement.optimise.problem import Load, MachineModel, MachineSource, PlacementProblem, Solution
from lattice.placement.optimise.solve import solve

Spots = dict[str, int]  # data center or region -> replicas
SLOTS = 1_000_000  # replicas that a data center takes, as far as their number goes
NEARLY_FULL = 0.7
MOVE = 720 * 1000  # micro-dollars: a move must save a tenth of a cent an hour over 30 days


@dataclass
class State:
    """What is free, and what has been seen so far; nothing of what is to come."""

    instance: Instance
    free: dict[str, tuple[int, int]] = field(default_factory=dict)
    size: dict[str, DataCenter] = field(default_factory=dict)
    seen: list[float] = field(default_factory=list)  # what a core of each service so far would cost outside

    def __post_init__(self) -> None:
        self.size = {dc.name: dc for dc in self.instance.data_centers}
        self.free = {dc.name: (dc.cores, dc.memory) for dc in self.instance.data_centers}

    def has_room(self, service: Service, dc: str) -> bool:
        cores, memory = self.free[dc]
        return cores >= service.cpu and memory >= service.memory

    def take(self, service: Service, dc: str) -> None:
        cores, memory = self.free[dc]
        self.free[dc] = cores - service.cpu, memory - service.memory

    def shares(self, dc: str) -> tuple[float, float]:
        return self.free[dc][0] / self.size[dc].cores, self.free[dc][1] / self.size[dc].memory


Rule = Callable[[State, Service, str], object]  # the least comes first; None: not there


def by_name(state: State, service: Service, dc: str) -> object:
    return dc


def emptiest(state: State, service: Service, dc: str) -> object:
    """Largest share free in the scarcer of cores and memory."""
    return -min(state.shares(dc)), dc


def best_suited(state: State, service: Service, dc: str) -> object:
    """Largest share free, cores and memory weighted by how much of each the replica takes of the data center."""
    cores, memory = state.shares(dc)
    of_cores, of_memory = service.cpu / state.size[dc].cores, service.memory / state.size[dc].memory
    return -(cores * of_cores + memory * of_memory) / (of_cores + of_memory), dc


def like_proportions(state: State, service: Service, dc: str) -> object:
    """GiB per core free nearest to what the replica asks, in whole GiB; then the emptiest."""
    cores, memory = state.free[dc]
    return round(abs(memory / max(1, cores) - service.memory / service.cpu)), emptiest(state, service, dc)


def leaving_room_for_dearer(state: State, service: Service, dc: str) -> object:
    """Not static first: when nearly full, only those that would cost more outside than the middle one seen so far."""
    own = min(service.cost.values()) / (service.cpu + 0.114 * service.memory)
    if 1 - min(state.shares(dc)) >= NEARLY_FULL and own < sorted(state.seen)[(len(state.seen) - 1) // 2]:
        return None
    return best_suited(state, service, dc)


RULES: dict[str, Rule] = {
    "by name": by_name,
    "emptiest": emptiest,
    "best suited": best_suited,
    "like proportions": like_proportions,
    "leaving room for dearer (not static first)": leaving_room_for_dearer,
}


def replay(instance: Instance, rule: Rule) -> dict[str, Spots]:
    """Each service in turn, replica after replica, and none is touched again."""
    state = State(instance)
    placed = {}
    for service in instance.services:
        if service.inside:
            state.seen.append(min(service.cost.values()) / (service.cpu + 0.114 * service.memory))
        inside: Spots = {}
        for left in range(service.replicas, 0, -1):
            able = [
                dc
                for dc in service.inside
                if state.has_room(service, dc) and not _is_last_chance(service, left, inside, dc)
            ]
            ranked = sorted((rank, dc) for dc in able if (rank := rule(state, service, dc)) is not None)
            if not ranked:
                break
            inside[ranked[0][1]] = inside.get(ranked[0][1], 0) + 1
            state.take(service, ranked[0][1])
        placed[service.name] = inside | outside(service, inside)
    return placed


def _is_last_chance(service: Service, left: int, inside: Spots, dc: str) -> bool:
    """The last replica of a service that must be in two regions does not go where all the others are."""
    return service.min_regions > len({*inside, dc}) + left - 1


def outside(service: Service, inside: Spots) -> Spots:
    """The rest: as many regions as are still wanted, each the next cheapest; all else on the cheapest."""
    rest = service.replicas - sum(inside.values())
    cheapest = sorted(service.cost, key=lambda region: (service.cost[region], region))
    spots: Spots = {}
    for region in (
        cheapest[: min(rest, service.min_regions - len(inside))] if service.min_regions > len(inside) else ()
    ):
        spots[region] = 1
    if rest > len(spots):
        spots[cheapest[0]] = spots.get(cheapest[0], 0) + rest - len(spots)
    return spots


def cost(instance: Instance, placed: dict[str, Spots]) -> int:
    return sum(
        service.cost.get(spot, 0) * count
        for service in instance.services
        for spot, count in placed[service.name].items()
    )


def as_program(
    instance: Instance, now: dict[str, Spots] | None = None, move_cost: int = 0
) -> PlacementProblem:
    """For the product: a data center is one owned machine; a cloud machine has one slot, and each replica takes one."""
    price = {
        (region, s.cpu, s.memory): dollars for s in instance.services for region, dollars in s.cost.items()
    }
    sources = [
        MachineSource(dc.name, dc.region, (MachineModel("all", (dc.cores, dc.memory, SLOTS), 0),), 1)
        for dc in instance.data_centers
    ]
    for region in sorted({region for region, _, _ in price}):
        models = (
            MachineModel(f"{cpu}x{memory}", (cpu, memory, 1), dollars)
            for (where, cpu, memory), dollars in price.items()
            if where == region
        )
        sources.append(MachineSource(region, region, tuple(models)))
    names = {source.name: tuple(model.name for model in source.models) for source in sources}
    loads = tuple(
        Load(
            service.name,
            service.replicas,
            (service.cpu, service.memory, 1),
            {name: names[name] for name in (*service.inside, *service.cost)},
            min_regions=service.min_regions,
            current_counts=_models(instance, service, now[service.name]) if now else {},
            move_cost=move_cost,
        )
        for service in instance.services
    )
    return PlacementProblem(("cores", "memory", "slots"), tuple(sources), loads)


def _models(instance: Instance, service: Service, spots: Spots) -> dict[tuple[str, str], int]:
    owned = {dc.name for dc in instance.data_centers}
    return {
        (spot, "all" if spot in owned else f"{service.cpu}x{service.memory}"): count
        for spot, count in spots.items()
    }


@dataclass
class Figures:
    """Ratios of one line of the table, one a seed."""

    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        spread = f"mean {statistics.mean(self.ratios):.4f}, {min(self.ratios):.4f} to {max(self.ratios):.4f}"
        moves = f", {statistics.mean(self.moves):.0f} moves" if any(self.moves) else ""
        return f"{spread}, {statistics.mean(self.seconds):.2f} s of processor{moves}"


def measure(instance: Instance, least: int, possible: int, table: dict[str, Figures]) -> None:
    """`least`: a proven bound, so that a ratio may come out too large, never too small; `possible`: a cost that can be had."""

    def note(name: str, do: Callable[[], tuple[int, int]]) -> None:
        began = time.process_time()
        spent, moves = do()
        line = table.setdefault(name, Figures())
        line.seconds.append(time.process_time() - began)
        line.ratios.append(spent / least)
        line.moves.append(moves)

    for name, rule in RULES.items():
        note(f"online, {name}", lambda rule=rule: (cost(instance, replay(instance, rule)), 0))
    now = replay(instance, best_suited)
    note("re-plan, gap 1 %", lambda: _bought(solve(as_program(instance, now, MOVE), gap=0.01), possible))
    note("optimise, gap 0.05 %", lambda: _bought(solve(as_program(instance), gap=0.0005), possible))


def _bought(outcome: Solution, possible: int) -> tuple[int, int]:
    assert not outcome.unplaced, f"left out: {outcome.unplaced}"
    assert outcome.moves or outcome.bound <= possible, (
        f"says that nothing is below {outcome.bound}, but {possible} is possible"
    )
    return outcome.cost, outcome.moves


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.q3", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1-20")
    asked = parser.parse_args()
    first, _, last = asked.seeds.partition("-")
    kept = json.loads(KEPT.read_text())["seeds"] if KEPT.exists() else {}
    table: dict[str, Figures] = {}
    for seed in range(int(first), int(last or first) + 1):
        instance = load(seed)
        known = kept.get(str(seed)) or figures_of(optimum(instance, ENOUGH))
        measure(instance, known["bound"], known["cost"], table)
    for name, line in table.items():
        print(f"{name:50} {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
