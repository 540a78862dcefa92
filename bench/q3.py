"""Cost of a fleet ÷ the least possible cost (Q3): rules for arriving services, a re-plan of all services, and
the optimiser.

The rules are replayed in plain Python, apart from the product, to compare rules. "Static first" means that a
replica goes to a data center with free capacity before a cloud; the rules differ in the choice of the data
center. Run: python -m bench.q3 --help
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

# Data center or region -> replicas.
Spots = dict[str, int]
# Slots of a data center: no limit in practice.
SLOTS = 1_000_000
NEARLY_FULL = 0.7
# Micro-dollars: a move must save a tenth of a cent per hour over 30 days.
MOVE = 720 * 1000


@dataclass
class State:
    """Free capacity and past arrivals; no knowledge of later services."""

    instance: Instance
    free: dict[str, tuple[int, int]] = field(default_factory=dict)
    size: dict[str, DataCenter] = field(default_factory=dict)
    # Cost in clouds per core of every service so far.
    outside_costs: list[float] = field(default_factory=list)

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


# The smallest rank comes first; None: the data center is not allowed.
Rule = Callable[[State, Service, str], object]


def by_name(state: State, service: Service, dc: str) -> object:
    return dc


def emptiest(state: State, service: Service, dc: str) -> object:
    """Largest free share of the scarcer of cores and memory."""
    return -min(state.shares(dc)), dc


def best_suited(state: State, service: Service, dc: str) -> object:
    """Largest free share, with cores and memory weighted by the replica's share of the data center."""
    cores, memory = state.shares(dc)
    of_cores, of_memory = service.cpu / state.size[dc].cores, service.memory / state.size[dc].memory
    return -(cores * of_cores + memory * of_memory) / (of_cores + of_memory), dc


def like_proportions(state: State, service: Service, dc: str) -> object:
    """Free GiB per core nearest to the replica's ratio, in whole GiB; then the emptiest."""
    cores, memory = state.free[dc]
    return round(abs(memory / max(1, cores) - service.memory / service.cpu)), emptiest(state, service, dc)


def leaving_room_for_dearer(state: State, service: Service, dc: str) -> object:
    """Not static first: a nearly full data center takes only services that cost more in clouds than the
    median so far."""
    own = min(service.cost.values()) / (service.cpu + 0.114 * service.memory)
    if (
        1 - min(state.shares(dc)) >= NEARLY_FULL
        and own < sorted(state.outside_costs)[(len(state.outside_costs) - 1) // 2]
    ):
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
    """Place services in order, replica after replica, without later moves."""
    state = State(instance)
    placed = {}
    for service in instance.services:
        if service.inside:
            state.outside_costs.append(min(service.cost.values()) / (service.cpu + 0.114 * service.memory))
        inside: Spots = {}
        for remaining in range(service.replicas, 0, -1):
            feasible = [
                dc
                for dc in service.inside
                if state.has_room(service, dc) and not _is_last_chance(service, remaining, inside, dc)
            ]
            ranked = sorted((rank, dc) for dc in feasible if (rank := rule(state, service, dc)) is not None)
            if not ranked:
                break
            inside[ranked[0][1]] = inside.get(ranked[0][1], 0) + 1
            state.take(service, ranked[0][1])
        placed[service.name] = inside | outside(service, inside)
    return placed


def _is_last_chance(service: Service, remaining: int, inside: Spots, dc: str) -> bool:
    """Report whether the data center would leave too few replicas to reach the required regions."""
    return service.min_regions > len({*inside, dc}) + remaining - 1


def outside(service: Service, inside: Spots) -> Spots:
    """Cloud regions of the remaining replicas: the next cheapest regions that are required, then the cheapest
    region."""
    remaining = service.replicas - sum(inside.values())
    cheapest = sorted(service.cost, key=lambda region: (service.cost[region], region))
    spots: Spots = {}
    for region in (
        cheapest[: min(remaining, service.min_regions - len(inside))]
        if service.min_regions > len(inside)
        else ()
    ):
        spots[region] = 1
    if remaining > len(spots):
        spots[cheapest[0]] = spots.get(cheapest[0], 0) + remaining - len(spots)
    return spots


def cost(instance: Instance, placed: dict[str, Spots]) -> int:
    total = 0
    for service in instance.services:
        total += sum(service.cost.get(spot, 0) * count for spot, count in placed[service.name].items())
    return total


def as_program(
    instance: Instance, now: dict[str, Spots] | None = None, move_cost: int = 0
) -> PlacementProblem:
    """The problem for the product: a data center is an owned machine; a cloud machine has a single slot, and
    a replica takes a slot."""
    price: dict[tuple[str, int, int], int] = {}
    for service in instance.services:
        price |= {(region, service.cpu, service.memory): dollars for region, dollars in service.cost.items()}
    sources = [
        MachineSource(dc.name, dc.region, (MachineModel("all", (dc.cores, dc.memory, SLOTS), 0),), 1)
        for dc in instance.data_centers
    ]
    for region in sorted({region for region, _, _ in price}):
        models = (
            MachineModel(f"{cpu}x{memory}", (cpu, memory, 1), dollars)
            for (model_region, cpu, memory), dollars in price.items()
            if model_region == region
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
    """Ratios of a table row, by seed."""

    ratios: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        spread = f"mean {statistics.mean(self.ratios):.4f}, {min(self.ratios):.4f} to {max(self.ratios):.4f}"
        moves = f", {statistics.mean(self.moves):.0f} moves" if any(self.moves) else ""
        return f"{spread}, {statistics.mean(self.seconds):.2f} s of processor{moves}"


def measure(instance: Instance, least: int, possible: int, table: dict[str, Figures]) -> None:
    """Measure all rules on an instance. `least` is a proven bound, so ratios are never too small; `possible`
    is a feasible cost."""

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
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    saved = json.loads(KEPT.read_text())["seeds"] if KEPT.exists() else {}
    table: dict[str, Figures] = {}
    for seed in range(int(first), int(last or first) + 1):
        instance = load(seed)
        optimum_figures = saved.get(str(seed)) or figures_of(optimum(instance, ENOUGH))
        measure(instance, optimum_figures["bound"], optimum_figures["cost"], table)
    for name, line in table.items():
        print(f"{name:50} {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
