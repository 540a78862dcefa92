"""What is asked of the optimiser, and what does it answer? Loads to spread over sources of machines, as plain integers.

A machine may hold replicas of several loads, as many as fit in every resource. A load that wants machines of its own asks for one
unit of a resource of which a machine has one. Money is micro-dollars an hour.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from lattice.errors import Invalid

SOLVER_NO_LIMIT = 1 << 60  # a limit of this size or more does not limit

SolverStatus = Literal[
    "optimal",  # proven: the gap is no more than was asked for
    "packed",  # the solver is done, but whole machines cost more than its bound, and nobody can tell whether they must
    "time limit",
    "greedy",  # without the solver
]


@dataclass(frozen=True, slots=True)
class MachineModel:
    """One machine class as a source has it."""

    name: str
    size: tuple[int, ...]  # by resource, in the program's order
    price: int  # micro-dollars an hour; 0 for what is owned
    existing: int = 0  # machines that are there and paid for; they may stay or go
    max_machines: int | None = None  # machines; what can no longer be had has as many as are there


@dataclass(frozen=True, slots=True)
class MachineMinimum:
    """If any of these models has a machine, there are at least so many machines of them."""

    models: tuple[str, ...]
    min_machines: int


@dataclass(frozen=True, slots=True)
class MachineSource:
    """Where machines come from. What exists may stay even where a limit has fallen below it."""

    name: str
    region: str
    models: tuple[MachineModel, ...]
    max_machines: int | None = None
    resource_limits: tuple[
        int | None, ...
    ] = ()  # of each resource, over its machines' sizes; empty: no limit
    ledgers: tuple[str, ...] = ()  # every one pays for each machine
    minimums: tuple[MachineMinimum, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaCap:
    """At most so many replicas in these sources together."""

    sources: frozenset[str]
    max_replicas: int


@dataclass(frozen=True, slots=True)
class ProximityRule:
    """Replicas in a source need one of another load in one of the sources beside it; where none is listed they need nothing."""

    target_load: str
    reachable_sources: Mapping[str, frozenset[str]]  # source -> sources of the other


@dataclass(frozen=True, slots=True)
class Load:
    """Equal replicas, and the rules for where they go."""

    name: str
    replicas: int
    needs: tuple[int, ...]
    usable_models: Mapping[str, tuple[str, ...]]  # source -> models that may take it
    required_source_groups: tuple[frozenset[str], ...] = ()  # of sources: at least one replica in each
    min_regions: int = 1
    caps: tuple[ReplicaCap, ...] = ()
    proximity_rules: tuple[ProximityRule, ...] = ()
    current_counts: Mapping[tuple[str, str], int] = field(
        default_factory=dict
    )  # source and model -> replicas there now
    move_cost: int = 0  # micro-dollars, once, for each replica that leaves machines which could keep it


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """The whole question. A move pays back if what it saves in `payback_hours` is at least what it costs."""

    resources: tuple[str, ...]
    sources: tuple[MachineSource, ...]
    loads: tuple[Load, ...]
    ledger_limits: Mapping[str, int] = field(
        default_factory=dict
    )  # most micro-dollars an hour; a ledger that is over it may not grow
    payback_hours: int = 720
    max_moves: int | None = None

    def __post_init__(self) -> None:
        _reject_duplicates("source", [source.name for source in self.sources])
        _reject_duplicates("load", [load.name for load in self.loads])
        if self.payback_hours < 1:
            raise Invalid(
                f"a move must pay back within at least 1 hour, got {self.payback_hours}",
                fix="give 1 or more hours",
            )
        sized = [(load.name, load.needs) for load in self.loads] + [
            (source.name, m.size) for source in self.sources for m in source.models
        ]
        for name, vector in sized:
            if len(vector) != len(self.resources):
                what = f"{len(vector)} amounts for {len(self.resources)} resources"
                raise Invalid(what, where=name, fix=f"give one each of {', '.join(self.resources)}")

    def move_price(self, load: Load) -> int:
        """Micro-dollars an hour that one move of this load weighs, rounded up."""
        return -(-load.move_cost // self.payback_hours)


@dataclass(frozen=True, slots=True, order=True)
class ReplicaAllocation:
    """So many replicas of a load on machines of one model of a source."""

    load: str
    source: str
    model: str
    replicas: int


@dataclass(frozen=True, slots=True, order=True)
class MachineCount:
    """So many machines of one model of a source."""

    source: str
    model: str
    machines: int


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer that keeps every rule and can really be packed onto its machines; `bound` is what no such answer can go below.

    Replicas `left_out` found no room; cost and bound are then those of placing the others.
    """

    allocations: tuple[ReplicaAllocation, ...]
    machines: tuple[MachineCount, ...]
    cost: int  # micro-dollars an hour of all machines
    moves: int  # replicas that leave machines which could keep them
    move_penalty: int  # what the moves weigh, micro-dollars an hour over the payback time
    bound: int  # of cost + moving
    status: SolverStatus
    unplaced: Mapping[str, int] = field(default_factory=dict)
    note: str = ""  # why the solver did not take part

    @property
    def total(self) -> int:
        return self.cost + self.move_penalty

    @property
    def gap(self) -> float:
        """0 is proven best; 0.01 means that at most 1 % could be saved."""
        return (self.total - self.bound) / self.total if self.total > self.bound else 0.0


def _reject_duplicates(kind: str, names: list[str]) -> None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise Invalid(
            f"{count} of them are named {name}", where=kind, fix=f"give every {kind} a name of its own"
        )
