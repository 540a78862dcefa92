"""The least cost of a Q3 instance by an exact model that shares no code with the product's optimiser.

Start with all replicas in clouds; a replica in a data center saves a fixed amount: a knapsack without
machines, regions or flows. Two checks stand beside the solver: enumeration of every assignment on cut-down
instances, and a bound from the capacity prices alone, which holds whatever the solver did. Run: python -m
bench.optimum --help
"""

import argparse
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import highspy
import numpy as np

from bench.instances import Instance, Service, cut_down, load

KEPT = Path(__file__).parent / "results" / "q3_optimum.json"
# Relative error of the solver's bound.
BOUND_ERROR = 1e-7
# Gap, as share of the cost, up to which an optimum counts as proven: ten times the error.
PROVEN = 1e-6
# Gap, as share of the cost, at which the search stops.
ENOUGH = 1e-6
# Capacity prices are rounded to such a fraction of a micro-dollar, so that the bound is exact arithmetic.
PRICE_STEP = 1 << 20


@dataclass(frozen=True, slots=True)
class Pattern:
    # Replicas per data center.
    inside: tuple[int, ...]
    # Micro-dollars per hour of the replicas in clouds.
    cost: int


@dataclass(frozen=True, slots=True)
class Optimum:
    # Of the best solution.
    cost: int
    # Proved by the solver; the optimum lies between bound and cost.
    bound: int
    # Proved by capacity prices alone, without trust in the solver.
    priced: int

    @property
    def is_proven(self) -> bool:
        """Report whether no solution costs less, up to the floating-point error of the bound."""
        return self.cost - max(self.bound, self.priced) <= PROVEN * self.cost


def figures_of(best: Optimum) -> dict[str, int]:
    return {"cost": best.cost, "bound": max(best.bound, best.priced), "priced": best.priced}


def patterns(service: Service, instance: Instance) -> list[Pattern]:
    """Every split of the replicas that the rules allow, with the cheapest cost in clouds."""
    max_counts = [service.replicas if dc.name in service.inside else 0 for dc in instance.data_centers]
    patterns = []
    for counts in itertools.product(*(range(n + 1) for n in max_counts)):
        remaining = service.replicas - sum(counts)
        if remaining >= 0 and (cost := outside(service, instance, counts, remaining)) is not None:
            patterns.append(Pattern(counts, cost))
    return patterns


def outside(service: Service, instance: Instance, counts: tuple[int, ...], remaining: int) -> int | None:
    """The cost of the cheapest regions for `remaining` replicas, so that the service covers enough regions;
    None if impossible."""
    used = {dc.region for dc, count in zip(instance.data_centers, counts, strict=True) if count}
    new_prices = sorted(price for region, price in service.cost.items() if region not in used)
    required = max(0, service.min_regions - len(used))
    if required > min(remaining, len(new_prices)):
        return None
    spread = sum(new_prices[:required])
    return spread + (remaining - required) * min(service.cost.values()) if remaining else spread


@dataclass(frozen=True, slots=True)
class Kind:
    """Services with equal resources and savings, or a service that must run in two regions: every replica
    inside saves the same."""

    first: Service
    replicas: int
    # Indexes of data centers.
    inside: tuple[int, ...]

    @property
    def saving(self) -> int:
        return min(self.first.cost.values())

    @property
    def is_spread(self) -> bool:
        return self.first.min_regions == 2

    @property
    def second(self) -> int:
        """The additional cost of a replica in the second cheapest region."""
        return sorted(self.first.cost.values())[1] - self.saving


@dataclass(frozen=True)
class Question:
    instance: Instance
    kinds: tuple[Kind, ...]

    @property
    def all_outside(self) -> int:
        return sum(kind.saving * kind.replicas for kind in self.kinds)

    @property
    def limits(self) -> list[int]:
        """Cores and memory of every data center, then the replicas of every kind."""
        capacity: list[int] = []
        for dc in self.instance.data_centers:
            capacity += [dc.cores, dc.memory]
        return capacity + [kind.replicas for kind in self.kinds]

    @property
    def spread(self) -> list[Kind]:
        return [kind for kind in self.kinds if kind.is_spread]


def question(instance: Instance) -> Question:
    alike: dict[tuple[object, ...], list[Service]] = {}
    for service in instance.services:
        assert service.min_regions <= 2, (
            f"{service.name} wants {service.min_regions} regions; this model knows two"
        )
        own = service.name if service.min_regions == 2 else ""
        alike.setdefault(
            (own, service.cpu, service.memory, service.inside, min(service.cost.values())), []
        ).append(service)
    kinds = []
    for group in alike.values():
        inside = tuple(d for d, dc in enumerate(instance.data_centers) if dc.name in group[0].inside)
        kinds.append(Kind(group[0], sum(service.replicas for service in group), inside))
    return Question(instance, tuple(kinds))


def solve(instance: Instance, gap: float = 0.0, limit: float = 60.0) -> Optimum:
    problem = question(instance)
    model = _model(problem)
    model.setOptionValue("mip_rel_gap", gap)
    model.setOptionValue("time_limit", limit)
    model.run()
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SystemExit(f"seed {instance.seed}: nothing found within {limit:g} s ({model.getModelStatus()})")
    cost = _checked_cost(problem, [round(value) for value in model.getSolution().col_value])
    return Optimum(
        cost,
        math.ceil(model.getInfo().mip_dual_bound * (1 - BOUND_ERROR)),
        priced_bound(instance, _prices(problem)),
    )


def _columns(problem: Question) -> list[tuple[int, int, dict[int, int]]]:
    """Cost, upper bound and coefficients by row: the rows of `limits`, then a row for every kind that must be
    spread.

    A spread kind never has all replicas in a single data center, and pays for a second region without a
    replica inside.
    """
    columns: list[tuple[int, int, dict[int, int]]] = []
    spread = len(problem.limits)
    for row, kind in enumerate(problem.kinds, 2 * len(problem.instance.data_centers)):
        need, spread_row = (kind.first.cpu, kind.first.memory), {spread: 1} if kind.is_spread else {}
        upper_bound = kind.replicas - len(spread_row)
        columns += [
            (-kind.saving, upper_bound, {2 * d: need[0], 2 * d + 1: need[1], row: 1} | spread_row)
            for d in kind.inside
        ]
        if kind.is_spread:
            columns.append((kind.second, 1, spread_row))
            spread += 1
    return columns


def _model(problem: Question, relaxed: bool = False) -> highspy.Highs:
    model = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 7)):
        model.setOptionValue(option, value)
    columns, limits = _columns(problem), problem.limits
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns), len(limits) + len(problem.spread)
    lp.offset_ = problem.all_outside
    lp.col_cost_ = np.array([cost for cost, _, _ in columns], float)
    lp.col_lower_, lp.col_upper_ = (
        np.zeros(len(columns)),
        np.array([upper_bound for _, upper_bound, _ in columns], float),
    )
    lp.row_lower_ = np.array([-highspy.kHighsInf] * len(limits) + [1.0] * len(problem.spread))
    lp.row_upper_ = np.array([*map(float, limits), *[highspy.kHighsInf] * len(problem.spread)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(coefficients) for _, _, coefficients in columns)])
    indexes: list[int] = []
    amounts: list[int] = []
    for _, _, coefficients in columns:
        indexes += coefficients
        amounts += coefficients.values()
    lp.a_matrix_.index_ = np.array(indexes)
    lp.a_matrix_.value_ = np.array(amounts, float)
    if not relaxed:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
    model.passModel(lp)
    return model


def _checked_cost(problem: Question, values: list[int]) -> int:
    """The cost of the chosen counts in whole numbers, after a check of every row."""
    total, used = problem.all_outside, Counter()
    for value, (cost, _, coefficients) in zip(values, _columns(problem), strict=True):
        total += value * cost
        used.update({row: value * amount for row, amount in coefficients.items()})
    limits = problem.limits
    assert all(used[row] <= limit for row, limit in enumerate(limits)), "more than there is"
    assert all(used[row] >= 1 for row in range(len(limits), len(limits) + len(problem.spread))), (
        "too few regions"
    )
    return total


def _prices(problem: Question) -> list[Fraction]:
    """The saving of a further core or GiB of every data center by the relaxation; any non-negative prices
    give a true bound."""
    model = _model(problem, relaxed=True)
    model.run()
    duals = model.getSolution().row_dual[: 2 * len(problem.instance.data_centers)]
    return [Fraction(round(max(0.0, -dual) * PRICE_STEP), PRICE_STEP) for dual in duals]


def priced_bound(instance: Instance, prices: list[Fraction]) -> int:
    """A bound by weak duality: charge for capacity, let every service choose alone, and return the charge for
    the whole capacity."""
    total = Fraction(0)
    for service in instance.services:
        per_replica = [
            prices[2 * d] * service.cpu + prices[2 * d + 1] * service.memory
            for d in range(len(instance.data_centers))
        ]
        total += min(
            p.cost + sum(n * price for n, price in zip(p.inside, per_replica, strict=True))
            for p in patterns(service, instance)
        )
    for d, dc in enumerate(instance.data_centers):
        total -= prices[2 * d] * dc.cores + prices[2 * d + 1] * dc.memory
    # Costs are whole micro-dollars, so the bound rounds up.
    return max(0, -(-total.numerator // total.denominator))


def enumerate_all(instance: Instance) -> int:
    """The least cost by enumeration of every assignment; only for instances of a few services."""
    free = tuple((dc.cores, dc.memory) for dc in instance.data_centers)
    reached: dict[tuple[tuple[int, int], ...], int] = {free: 0}
    for service in instance.services:
        places = [dc.name for dc in instance.data_centers if dc.name in service.inside] + sorted(service.cost)
        region = {dc.name: dc.region for dc in instance.data_centers}
        next_reached: dict[tuple[tuple[int, int], ...], int] = {}
        for spots in itertools.combinations_with_replacement(places, service.replicas):
            if len({region.get(spot, spot) for spot in spots}) < service.min_regions:
                continue
            cost = sum(service.cost[spot] for spot in spots if spot not in region)
            for free_now, so_far in reached.items():
                remaining = tuple(
                    (c - spots.count(dc.name) * service.cpu, m - spots.count(dc.name) * service.memory)
                    for dc, (c, m) in zip(instance.data_centers, free_now, strict=True)
                )
                if min(itertools.chain(*remaining)) >= 0:
                    next_reached[remaining] = min(next_reached.get(remaining, so_far + cost), so_far + cost)
        reached = next_reached
    return min(reached.values())


def check_small(cases: int) -> int:
    """Compare the model with enumeration on cut-down instances; returns the number of cases."""
    rng = random.Random(11)
    instances = [load(seed) for seed in range(1, 6)]
    for case in range(cases):
        small = cut_down(rng.choice(instances), rng)
        ours, truth = solve(small), enumerate_all(small)
        assert ours.cost == truth, f"case {case}: the model says {ours.cost}, enumeration {truth}"
        assert max(ours.bound, ours.priced) <= truth, (
            f"case {case}: bounds {ours.bound} and {ours.priced} above {truth}"
        )
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.optimum", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="1-20")
    parser.add_argument("--small", type=int, default=60, help="cut-down instances to check by enumeration")
    parser.add_argument("--keep", action="store_true", help=f"write {KEPT.name}")
    options = parser.parse_args()
    print(f"{check_small(options.small)} cut-down instances agree with enumeration")
    first, _, last = options.seeds.partition("-")
    saved = {}
    for seed in range(int(first), int(last or first) + 1):
        instance = load(seed)
        began = time.perf_counter()
        best = solve(instance, ENOUGH)
        took = time.perf_counter() - began
        saved[str(seed)] = figures_of(best)
        bounds = f"optimum at least {best.bound / best.cost:.6f} of it, by prices alone {best.priced / best.cost:.6f}"
        print(f"seed {seed:2}: {best.cost:>9} micro-dollars/h, {bounds}, {took:.1f} s", flush=True)
    if options.keep:
        KEPT.write_text(
            json.dumps(
                {"unit": "micro-dollars/h", "command": "python -m bench.optimum --keep", "seeds": saved},
                indent=1,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
