"""What is the least that one of Q3's instances can cost? An exact model of its own, sharing nothing with the product's optimiser.

Everything outside costs so much; each replica that goes inside saves so much: a knapsack without machines, regions or flows.
Two checks stand beside the solver: enumeration of every assignment on cut-down instances, and a bound from the capacity
prices alone, which is true whatever the solver did. Run: python -m bench.optimum --help
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
DOUBT = 1e-7  # of the solver's bound
PROVEN = 1e-6  # of the cost: ten times that
ENOUGH = 1e-6  # of the cost: where the search for the optimum stops
PRICE_STEP = (
    1 << 20
)  # capacity prices are rounded to this fraction of a micro-dollar, so that the bound is exact arithmetic


@dataclass(frozen=True, slots=True)
class Pattern:
    inside: tuple[int, ...]  # replicas per data center
    cost: int  # micro-dollars an hour of the replicas outside


@dataclass(frozen=True, slots=True)
class Optimum:
    cost: int  # of the best choice found
    bound: int  # that the solver proved; the optimum lies between the two
    priced: int  # bound proved by capacity prices alone, without trust in the solver

    @property
    def is_proven(self) -> bool:
        """Nothing costs less, but for what floating point may have added to the bound."""
        return self.cost - max(self.bound, self.priced) <= PROVEN * self.cost


def figures_of(best: Optimum) -> dict[str, int]:
    return {"cost": best.cost, "bound": max(best.bound, best.priced), "priced": best.priced}


def patterns(service: Service, instance: Instance) -> list[Pattern]:
    """Every split of the replicas that the rules allow, each with its cheapest outside."""
    most = [service.replicas if dc.name in service.inside else 0 for dc in instance.data_centers]
    found = []
    for counts in itertools.product(*(range(n + 1) for n in most)):
        rest = service.replicas - sum(counts)
        if rest >= 0 and (cost := outside(service, instance, counts, rest)) is not None:
            found.append(Pattern(counts, cost))
    return found


def outside(service: Service, instance: Instance, counts: tuple[int, ...], rest: int) -> int | None:
    """The cheapest regions for `rest` replicas such that inside and outside together touch enough regions."""
    used = {dc.region for dc, count in zip(instance.data_centers, counts, strict=True) if count}
    fresh = sorted(price for region, price in service.cost.items() if region not in used)
    must = max(0, service.min_regions - len(used))
    if must > min(rest, len(fresh)):
        return None
    spread = sum(fresh[:must])
    return spread + (rest - must) * min(service.cost.values()) if rest else spread


@dataclass(frozen=True, slots=True)
class Kind:
    """Services alike in all that matters, or one that must be in two regions: each replica inside saves the same."""

    first: Service
    replicas: int
    inside: tuple[int, ...]  # data centers by number

    @property
    def saving(self) -> int:
        return min(self.first.cost.values())

    @property
    def is_spread(self) -> bool:
        return self.first.min_regions == 2

    @property
    def second(self) -> int:
        """What it costs more to have one replica on the second cheapest region."""
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
        """Cores and memory of each data center, then the replicas of each kind."""
        capacity = [amount for dc in self.instance.data_centers for amount in (dc.cores, dc.memory)]
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
    asked = question(instance)
    model = _model(asked)
    model.setOptionValue("mip_rel_gap", gap)
    model.setOptionValue("time_limit", limit)
    model.run()
    if model.getInfo().primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        raise SystemExit(f"seed {instance.seed}: nothing found within {limit:g} s ({model.getModelStatus()})")
    cost = _checked_cost(asked, [round(value) for value in model.getSolution().col_value])
    return Optimum(
        cost, math.ceil(model.getInfo().mip_dual_bound * (1 - DOUBT)), priced_bound(instance, _prices(asked))
    )


def _columns(asked: Question) -> list[tuple[int, int, dict[int, int]]]:
    """Cost, most, and coefficients by row: those of `limits`, then one for each kind that must be spread.

    Such a kind never has all its replicas in one data center, and pays for a second region if it has none inside.
    """
    columns: list[tuple[int, int, dict[int, int]]] = []
    spread = len(asked.limits)
    for row, kind in enumerate(asked.kinds, 2 * len(asked.instance.data_centers)):
        need, some = (kind.first.cpu, kind.first.memory), {spread: 1} if kind.is_spread else {}
        most = kind.replicas - len(some)
        columns += [
            (-kind.saving, most, {2 * d: need[0], 2 * d + 1: need[1], row: 1} | some) for d in kind.inside
        ]
        if kind.is_spread:
            columns.append((kind.second, 1, some))
            spread += 1
    return columns


def _model(asked: Question, relaxed: bool = False) -> highspy.Highs:
    model = highspy.Highs()
    for option, value in (("output_flag", False), ("threads", 1), ("random_seed", 7)):
        model.setOptionValue(option, value)
    columns, limits = _columns(asked), asked.limits
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns), len(limits) + len(asked.spread)
    lp.offset_ = asked.all_outside
    lp.col_cost_ = np.array([cost for cost, _, _ in columns], float)
    lp.col_lower_, lp.col_upper_ = np.zeros(len(columns)), np.array([most for _, most, _ in columns], float)
    lp.row_lower_ = np.array([-highspy.kHighsInf] * len(limits) + [1.0] * len(asked.spread))
    lp.row_upper_ = np.array([*map(float, limits), *[highspy.kHighsInf] * len(asked.spread)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(used) for _, _, used in columns)])
    lp.a_matrix_.index_ = np.array([row for _, _, used in columns for row in used])
    lp.a_matrix_.value_ = np.array([amount for _, _, used in columns for amount in used.values()], float)
    if not relaxed:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(columns)
    model.passModel(lp)
    return model


def _checked_cost(asked: Question, values: list[int]) -> int:
    """What the chosen counts cost, in whole numbers, after each row has been looked at again."""
    total, used = asked.all_outside, Counter()
    for value, (cost, _, coefficients) in zip(values, _columns(asked), strict=True):
        total += value * cost
        used.update({row: value * amount for row, amount in coefficients.items()})
    limits = asked.limits
    assert all(used[row] <= limit for row, limit in enumerate(limits)), "more than there is"
    assert all(used[row] >= 1 for row in range(len(limits), len(limits) + len(asked.spread))), (
        "too few regions"
    )
    return total


def _prices(asked: Question) -> list[Fraction]:
    """What one more core or GiB of each data center would save, by the relaxation; any non-negative numbers give a true bound."""
    model = _model(asked, relaxed=True)
    model.run()
    duals = model.getSolution().row_dual[: 2 * len(asked.instance.data_centers)]
    return [Fraction(round(max(0.0, -dual) * PRICE_STEP), PRICE_STEP) for dual in duals]


def priced_bound(instance: Instance, prices: list[Fraction]) -> int:
    """Weak duality: charge for the capacity, let each service choose alone, give the charge for all the capacity back."""
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
    return max(
        0, -(-total.numerator // total.denominator)
    )  # costs are whole micro-dollars, so the bound rounds up


def enumerate_all(instance: Instance) -> int:
    """The obvious way: every replica in every place, service after service; only for instances of a few services."""
    free = tuple((dc.cores, dc.memory) for dc in instance.data_centers)
    reached: dict[tuple[tuple[int, int], ...], int] = {free: 0}
    for service in instance.services:
        places = [dc.name for dc in instance.data_centers if dc.name in service.inside] + sorted(service.cost)
        region = {dc.name: dc.region for dc in instance.data_centers}
        after: dict[tuple[tuple[int, int], ...], int] = {}
        for spots in itertools.combinations_with_replacement(places, service.replicas):
            if len({region.get(spot, spot) for spot in spots}) < service.min_regions:
                continue
            cost = sum(service.cost[spot] for spot in spots if spot not in region)
            for left, so_far in reached.items():
                now = tuple(
                    (c - spots.count(dc.name) * service.cpu, m - spots.count(dc.name) * service.memory)
                    for dc, (c, m) in zip(instance.data_centers, left, strict=True)
                )
                if min(itertools.chain(*now)) >= 0:
                    after[now] = min(after.get(now, so_far + cost), so_far + cost)
        reached = after
    return min(reached.values())


def check_small(cases: int) -> int:
    """Cut-down instances, where every assignment can be tried; returns how many agreed (all, or it stops)."""
    rng = random.Random(11)
    whole = [load(seed) for seed in range(1, 6)]
    for case in range(cases):
        small = cut_down(rng.choice(whole), rng)
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
    asked = parser.parse_args()
    print(f"{check_small(asked.small)} cut-down instances agree with enumeration")
    first, _, last = asked.seeds.partition("-")
    kept = {}
    for seed in range(int(first), int(last or first) + 1):
        instance = load(seed)
        began = time.perf_counter()
        best = solve(instance, ENOUGH)
        took = time.perf_counter() - began
        kept[str(seed)] = figures_of(best)
        rest = f"optimum at least {best.bound / best.cost:.6f} of it, by prices alone {best.priced / best.cost:.6f}"
        print(f"seed {seed:2}: {best.cost:>9} micro-dollars/h, {rest}, {took:.1f} s", flush=True)
    if asked.keep:
        KEPT.write_text(
            json.dumps(
                {"unit": "micro-dollars/h", "command": "python -m bench.optimum --keep", "seeds": kept},
                indent=1,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
