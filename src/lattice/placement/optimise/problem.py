"""The problem and the solution of the optimiser: loads to distribute over sources of machines, in integers.

A machine may hold replicas of several loads, as many as fit in every resource. To get machines of its own, a
load requests 1 of an artificial resource of which every machine has 1. Prices are micro-dollars per hour.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lattice.errors import Invalid

# A limit of this size or more counts as no limit.
SOLVER_NO_LIMIT = 1 << 60

# How well the solution is proven to be the cheapest. "optimal": the cost is within the requested gap of the
# bound. "packed": the solver has finished, but packing onto whole machines costs more than its bound, so a
# cheaper solution may or may not exist. "time limit": the solver was stopped. "greedy": the solver did not
# take part.
SolverStatus = Literal["optimal", "packed", "time limit", "greedy"]


@dataclass(frozen=True, slots=True)
class MachineModel:
    """A node class at a source."""

    name: str
    # By resource, in the order of the problem.
    size: tuple[int, ...]
    # Micro-dollars per hour; 0 for owned machines.
    price: int
    # Machines that exist and are paid for; they may stay or be removed.
    existing: int = 0
    # Limit of machines of this model; None: no limit. For machines that the offer no longer sells, the limit
    # is `existing`.
    max_machines: int | None = None


@dataclass(frozen=True, slots=True)
class MachineMinimum:
    """The smallest number of machines of these models together, if at least one of the models has a
    machine."""

    models: tuple[str, ...]
    min_machines: int


@dataclass(frozen=True, slots=True)
class MachineSource:
    """An offer as a source of machines. Existing machines may stay even if a limit has fallen below their
    number."""

    name: str
    region: str
    models: tuple[MachineModel, ...]
    max_machines: int | None = None
    # Limit by resource of the summed sizes of all machines; empty: no limit.
    resource_limits: tuple[int | None, ...] = ()
    # The ledgers that pay for the machines: the price of every machine counts in full in each ledger.
    ledgers: tuple[str, ...] = ()
    minimums: tuple[MachineMinimum, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaCap:
    """The largest number of replicas of a load in these sources together."""

    sources: frozenset[str]
    max_replicas: int


@dataclass(frozen=True, slots=True)
class SpreadRule:
    """Domains of sources: the replicas of a load in the fullest and in the emptiest domain differ by at most
    `max_skew`. A domain without sources has no replica."""

    domains: tuple[frozenset[str], ...]
    max_skew: int


@dataclass(frozen=True, slots=True)
class ProximityRule:
    """Replicas in a listed source need a replica of the target load in one of the reachable sources; replicas
    in other sources need none."""

    target_load: str
    # Source -> sources of the target load.
    reachable_sources: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Load:
    """A service for the optimiser: equal replicas, and the rules for their sources."""

    name: str
    replicas: int
    needs: tuple[int, ...]
    # Source -> models on which a replica may run.
    usable_models: Mapping[str, tuple[str, ...]]
    # At least one replica runs in each group of sources.
    required_source_groups: tuple[frozenset[str], ...] = ()
    min_regions: int = 1
    caps: tuple[ReplicaCap, ...] = ()
    proximity_rules: tuple[ProximityRule, ...] = ()
    # Source and model -> replicas there now.
    current_counts: Mapping[tuple[str, str], int] = field(default_factory=dict)
    # Micro-dollars, once, for a replica that leaves a machine on which it could stay.
    move_cost: int = 0
    spreads: tuple[SpreadRule, ...] = ()


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """All inputs of the optimiser. A move pays back if it saves at least its cost within `payback_hours`."""

    resources: tuple[str, ...]
    sources: tuple[MachineSource, ...]
    loads: tuple[Load, ...]
    # Micro-dollars per hour; a ledger beyond its limit may not grow.
    ledger_limits: Mapping[str, int] = field(default_factory=dict)
    payback_hours: int = 720
    max_moves: int | None = None

    def __post_init__(self) -> None:
        _reject_duplicates("source", [source.name for source in self.sources])
        _reject_duplicates("load", [load.name for load in self.loads])
        if self.payback_hours < 1:
            raise Invalid(
                f"the payback time of a move must be 1 hour or more, got {self.payback_hours}",
                fix="set 1 or more hours",
            )
        sized = [(load.name, load.needs) for load in self.loads]
        for source in self.sources:
            sized += [(source.name, model.size) for model in source.models]
        for name, vector in sized:
            if len(vector) != len(self.resources):
                problem = f"{len(vector)} amounts for {len(self.resources)} resources"
                raise Invalid(
                    problem, where=name, fix=f"state one amount for each of {', '.join(self.resources)}"
                )

    def move_price(self, load: Load) -> int:
        """Micro-dollars per hour that one move of the load costs over the payback time, rounded up."""
        return -(-load.move_cost // self.payback_hours)


@dataclass(frozen=True, slots=True, order=True)
class ReplicaAllocation:
    """The number of replicas of a load on machines of one model of a source."""

    load: str
    source: str
    model: str
    replicas: int


@dataclass(frozen=True, slots=True, order=True)
class MachineCount:
    """The number of machines of one model of a source."""

    source: str
    model: str
    machines: int


@dataclass(frozen=True, slots=True)
class Solution:
    """A solution that keeps every rule and can be packed onto its machines; `bound` is a lower bound for
    every such solution.

    Replicas in `unplaced` fit on no machine; cost and bound then cover the placed replicas.
    """

    allocations: tuple[ReplicaAllocation, ...]
    machines: tuple[MachineCount, ...]
    # Micro-dollars per hour of all machines.
    cost: int
    # Replicas that leave machines on which they could stay.
    moves: int
    # The cost of the moves over the payback time, in micro-dollars per hour.
    move_penalty: int
    # Lower bound of cost + move_penalty.
    bound: int
    status: SolverStatus
    unplaced: Mapping[str, int] = field(default_factory=dict)
    # The reason why the solver did not take part.
    note: str = ""

    @property
    def total(self) -> int:
        return self.cost + self.move_penalty

    @property
    def gap(self) -> float:
        """The largest possible saving as a share of the total; 0 is proven optimal."""
        return (self.total - self.bound) / self.total if self.total > self.bound else 0.0


def _reject_duplicates(kind: str, names: list[str]) -> None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise Invalid(f"{count} {kind}s are named {name}", where=kind, fix=f"give every {kind} a unique name")
