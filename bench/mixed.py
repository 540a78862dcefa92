"""Instances of the second family: services with spread rules on pools that sell machines of several classes, and
their least cost by an exact model that shares no code with the product.

A replica takes cores, and four GiB of memory per core, so that a machine is one number of cores. The exact model
is the cutting-stock program over all patterns of a machine: how many replicas of every size it holds. Beside it
stands the enumeration of every layout on cut-down instances. Run: python -m bench.mixed --help
"""

import argparse
import functools
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import highspy
import numpy as np

SIZES = (1, 2, 3, 4)
# Cores of a machine by class, and the range of its price per core in micro-dollars per hour: large machines are
# cheaper per core, but not everywhere.
CLASSES = {"small": (4, (46_000, 54_000)), "medium": (8, (42_000, 52_000)), "large": (16, (36_000, 50_000))}
REGIONS = ("r1", "r2", "r3", "r4")
GAP = 1e-4


@dataclass(frozen=True, slots=True)
class Pool:
    name: str
    region: str
    # Class -> micro-dollars per hour.
    prices: dict[str, int]


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    cores: int
    replicas: int
    # Regions the service may use.
    regions: tuple[str, ...]
    # Largest difference in replicas between two of these regions; 0: no rule.
    max_skew: int
    min_regions: int


@dataclass(frozen=True, slots=True)
class Mixed:
    seed: int
    pools: tuple[Pool, ...]
    services: tuple[Service, ...]  # in arrival order


def make(seed: int, services: int = 40) -> Mixed:
    """The instance of a seed; the shape (number of pools, classes and replicas) differs between seeds, too."""
    rng = random.Random(f"mixed {seed}")
    pools = []
    for region in REGIONS[: rng.randint(3, 4)]:
        level = rng.uniform(0.9, 1.3)
        offered = rng.sample(sorted(CLASSES), rng.randint(2, 3))
        prices = {
            name: round(CLASSES[name][0] * rng.uniform(*CLASSES[name][1]) * level) for name in sorted(offered)
        }
        pools.append(Pool(f"pool-{region}", region, prices))
    regions = tuple(pool.region for pool in pools)
    most = rng.choice([4, 6, 9])
    made = []
    for number in range(services):
        replicas = rng.randint(1, most)
        usable = regions if rng.random() < 0.7 else tuple(sorted(rng.sample(regions, 2)))
        rule = rng.random()
        max_skew = rng.choice([1, 2]) if rule < 0.35 else 0
        min_regions = 2 if 0.35 <= rule < 0.6 and replicas > 1 else 1
        made.append(Service(f"s{number:03}", rng.choice(SIZES), replicas, usable, max_skew, min_regions))
    return Mixed(seed, tuple(pools), tuple(made))


def patterns(cores: int) -> list[tuple[int, ...]]:
    """The numbers of replicas by size that fill a machine: with any further replica it would overflow."""
    ranges = [range(cores // size + 1) for size in SIZES]
    every = (counts for counts in itertools.product(*ranges) if _cores(counts) <= cores)
    return [counts for counts in every if cores - _cores(counts) < min(SIZES)]


def _cores(counts: tuple[int, ...]) -> int:
    return sum(size * count for size, count in zip(SIZES, counts, strict=True))


@dataclass
class Program:
    """Columns with cost and upper bound, rows with limits."""

    cost: list[float]
    upper: list[float]
    rows: list[tuple[float, dict[int, float], float]]

    def column(self, cost: float, upper: float) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1


def solve(instance: Mixed, gap: float = GAP, limit: float = 60.0) -> tuple[int, int]:
    """The cost of the best layout and a proven lower bound, in micro-dollars per hour."""
    program = Program([], [], [])
    needed: dict[tuple[str, int], dict[int, float]] = {}
    for service in instance.services:
        columns = {}
        for pool in instance.pools:
            if pool.region in service.regions:
                columns[pool.region] = column = program.column(0, service.replicas)
                needed.setdefault((pool.name, service.cores), {})[column] = -1
        program.rows.append((service.replicas, dict.fromkeys(columns.values(), 1.0), service.replicas))
        for one, other in itertools.permutations(columns.values(), 2) if service.max_skew else ():
            program.rows.append((-math.inf, {one: 1.0, other: -1.0}, service.max_skew))
        # Two regions: none has all replicas.
        for column in columns.values() if service.min_regions == 2 else ():
            program.rows.append((-math.inf, {column: 1.0}, service.replicas - 1))
    total = sum(service.cores * service.replicas for service in instance.services)
    for pool in instance.pools:
        supplied: dict[int, dict[int, float]] = {size: {} for size in SIZES}
        for name, price in pool.prices.items():
            for counts in patterns(CLASSES[name][0]):
                column = program.column(price, total)
                for size, count in zip(SIZES, counts, strict=True):
                    if count:
                        supplied[size][column] = count
        for size in SIZES:
            if (pool.name, size) in needed:
                program.rows.append((0, supplied[size] | needed[pool.name, size], math.inf))
    return _run(program, gap, limit)


def _run(program: Program, gap: float, limit: float) -> tuple[int, int]:
    model = highspy.Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 7),
        ("mip_rel_gap", gap),
        ("time_limit", limit),
    ):
        model.setOptionValue(option, value)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.rows)
    lp.col_cost_, lp.col_lower_ = np.array(program.cost, float), np.zeros(len(program.cost))
    lp.col_upper_ = np.array(program.upper, float)
    lp.row_lower_ = np.array([lower for lower, _, _ in program.rows], float)
    lp.row_upper_ = np.array([upper for _, _, upper in program.rows], float)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, terms, _ in program.rows)])
    lp.a_matrix_.index_ = np.array([column for _, terms, _ in program.rows for column in terms])
    lp.a_matrix_.value_ = np.array([value for _, terms, _ in program.rows for value in terms.values()], float)
    lp.integrality_ = [highspy.HighsVarType.kInteger] * len(program.cost)
    model.passModel(lp)
    model.run()
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SystemExit(f"nothing found within {limit:g} s ({model.getModelStatus()})")
    values = [round(value) for value in model.getSolution().col_value]
    cost = round(sum(value * price for value, price in zip(values, program.cost, strict=True)))
    return cost, math.ceil(model.getInfo().mip_dual_bound * (1 - 1e-7))


def layouts(service: Service) -> Iterator[tuple[tuple[str, int], ...]]:
    """Every number of replicas by region that the rules allow."""
    for counts in itertools.product(range(service.replicas + 1), repeat=len(service.regions)):
        used = sum(1 for count in counts if count)
        if (
            sum(counts) == service.replicas
            and used >= service.min_regions
            and (not service.max_skew or max(counts) - min(counts) <= service.max_skew)
        ):
            yield tuple(zip(service.regions, counts, strict=True))


def enumerate_all(instance: Mixed) -> int:
    """The least cost by enumeration of every layout and of every packing; for a few services only."""
    best = math.inf
    for choice in itertools.product(*map(list, map(layouts, instance.services))):
        items: dict[str, list[int]] = {}
        for service, counts in zip(instance.services, choice, strict=True):
            for region, count in counts:
                items.setdefault(region, []).extend([service.cores] * count)
        cost = 0.0
        for pool in instance.pools:
            machines = tuple(sorted((CLASSES[name][0], price) for name, price in pool.prices.items()))
            cost += packing_cost(tuple(sorted(items.get(pool.region, ()))), machines)
        best = min(best, cost)
    return round(best)


@functools.cache
def packing_cost(items: tuple[int, ...], machines: tuple[tuple[int, int], ...]) -> float:
    """The least cost of machines for the items: the largest item shares its machine with any of the others."""
    if not items:
        return 0.0
    largest, others = items[-1], items[:-1]
    best = math.inf
    for number in range(len(others) + 1):
        for chosen in set(itertools.combinations(others, number)):
            fitting = [price for cores, price in machines if cores >= largest + sum(chosen)]
            if fitting:
                rest = tuple(sorted((Counter(others) - Counter(chosen)).elements()))
                best = min(best, min(fitting) + packing_cost(rest, machines))
    return best


def check_small(cases: int) -> int:
    """Compare the model with enumeration on cut-down instances; returns the number of cases."""
    rng = random.Random(5)
    for case in range(cases):
        small = make(rng.randint(1, 1000), services=3)
        services = []
        for service in small.services:
            replicas = min(service.replicas, 3)
            services.append(
                Service(
                    service.name,
                    service.cores,
                    replicas,
                    service.regions,
                    service.max_skew,
                    min(service.min_regions, replicas),
                )
            )
        small = Mixed(small.seed, small.pools, tuple(services))
        cost, bound = solve(small, gap=0.0)
        truth = enumerate_all(small)
        assert cost == truth, f"case {case}: the model says {cost}, enumeration {truth}"
        assert bound <= truth, f"case {case}: bound {bound} above {truth}"
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mixed", description=__doc__)
    parser.add_argument("--small", type=int, default=20, help="cut-down instances to check by enumeration")
    options = parser.parse_args()
    print(f"{check_small(options.small)} cut-down instances agree with enumeration")
    for seed in range(1, 6):
        cost, bound = solve(make(seed))
        print(f"seed {seed}: {cost} micro-dollars/h, optimum at least {bound / cost:.6f} of it", flush=True)


if __name__ == "__main__":
    main()
