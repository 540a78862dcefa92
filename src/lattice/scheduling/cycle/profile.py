"""Scheduling profiles as data: plugins and weights, tie-breaking, reservation timeout and binding mode."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

from lattice.engine.plugin import Filter, Profile, Rejections, Scope, Score
from lattice.engine.table import Floats
from lattice.errors import Cause, Invalid, NotFound
from lattice.kinds.meta.quantity import parse_seconds
from lattice.kinds.meta.validator import did_you_mean
from lattice.scheduling.plugins.cluster_events import ClusterEvent
from lattice.scheduling.plugins.filters.fit import Fit
from lattice.scheduling.plugins.filters.gpu import Gpu
from lattice.scheduling.plugins.filters.host_ports import HostPorts
from lattice.scheduling.plugins.filters.in_cluster import InCluster
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity, WorkloadAntiAffinity
from lattice.scheduling.plugins.filters.licence import Licence
from lattice.scheduling.plugins.filters.machine_image import MachineImage
from lattice.scheduling.plugins.filters.node_affinity import NodeAffinity
from lattice.scheduling.plugins.filters.node_pressure import NodePressure
from lattice.scheduling.plugins.filters.node_selector import NodeSelector
from lattice.scheduling.plugins.filters.node_share import NodeShare
from lattice.scheduling.plugins.filters.ready import Ready
from lattice.scheduling.plugins.filters.reserved_nodes import ReservedNodes
from lattice.scheduling.plugins.filters.runtime import Runtime
from lattice.scheduling.plugins.filters.taints import Taints
from lattice.scheduling.plugins.filters.topology_spread import TopologySpread
from lattice.scheduling.plugins.filters.volume_zone import VolumeZone
from lattice.scheduling.plugins.scores.balanced_resources import BalancedResources
from lattice.scheduling.plugins.scores.bin_packing import BinPacking
from lattice.scheduling.plugins.scores.gpu_fragmentation import GpuFragmentation
from lattice.scheduling.plugins.scores.least_allocated import LeastAllocated
from lattice.scheduling.plugins.scores.node_preference import NodePreference
from lattice.scheduling.plugins.scores.planned_nodes import PlannedNodes
from lattice.scheduling.plugins.scores.preferred_affinity import PreferredAffinity, PreferredAntiAffinity
from lattice.scheduling.plugins.scores.price import Price
from lattice.scheduling.plugins.scores.service_spread import ServiceSpread
from lattice.scheduling.plugins.scores.soft_spread import SoftSpread
from lattice.scheduling.plugins.scores.taint_preference import TaintPreference
from lattice.scheduling.plugins.scores.tightest_fit import TightestFit
from lattice.scheduling.table.workload_ask import WorkloadAsk

TieBreakerName = Literal[
    "fixed", "random", "least-loaded", "round-robin", "weighted-random", "affinity-based"
]
BindingModeName = Literal["optimistic", "pessimistic", "two-phase"]


class NodeFilter(Protocol):
    """An engine Filter whose asks are workloads. A filter of scope "domain" or "table" receives the NodeTable
    itself."""

    name: ClassVar[str]
    scope: ClassVar[Scope]
    wakes_on: ClassVar[frozenset[ClusterEvent]]

    def applies(self, ask: WorkloadAsk) -> bool: ...
    def filter(self, ask: WorkloadAsk, rows: Any) -> Rejections: ...


class NodeScore(Protocol):
    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: WorkloadAsk) -> bool: ...
    def score(self, ask: WorkloadAsk, rows: Any) -> Floats: ...


# The order matters: a node that several filters reject is counted for the first of these filters.
_FILTERS: tuple[NodeFilter, ...] = (
    Ready(),
    NodePressure(),
    InCluster(),
    ReservedNodes(),
    NodeSelector(),
    NodeAffinity(),
    Taints(),
    Runtime(),
    MachineImage(),
    Licence(),
    VolumeZone(),
    Fit(),
    Gpu(),
    HostPorts(),
    WorkloadAffinity(),
    WorkloadAntiAffinity(),
    NodeShare(),
    TopologySpread(),
)
_SCORES: tuple[NodeScore, ...] = (
    BalancedResources(),
    BinPacking(),
    TightestFit(),
    GpuFragmentation(),
    LeastAllocated(),
    ServiceSpread(),
    PlannedNodes(),
    SoftSpread(),
    NodePreference(),
    PreferredAffinity(),
    PreferredAntiAffinity(),
    TaintPreference(),
    Price(),
)
FILTERS: Mapping[str, NodeFilter] = {plugin.name: plugin for plugin in _FILTERS}
SCORES: Mapping[str, NodeScore] = {plugin.name: plugin for plugin in _SCORES}
REQUIRED_FILTERS = ("Fit", "Gpu", "HostPorts")  # without these filters a node would be overcommitted
MAX_WEIGHT = 1_000_000  # so that small differences remain in a weighted sum of all scores as float32
MIN_WEIGHT = 0.000001  # a smaller weight would be lost in the sum with any other score, or be 0 as float32
# Longest timeout that a profile may set. No binding takes a day, so a longer timeout is a typing mistake.
MAX_RESERVATION_TIMEOUT_S = 86_400
MAX_SHOWN_CHARS = 100  # limit of characters of a rejected value in an error message
# Seeds are 64-bit signed integers.
SEEDS = range(-(1 << 63), 1 << 63)
Number = int | float | Decimal  # numbers with a point in a manifest are read as Decimal


@dataclass(frozen=True)
class ProfileSpec:
    """A profile as written by the user."""

    name: str
    scores: Mapping[str, float]
    disabled: tuple[str, ...] = ()  # filters
    tie_breaker: TieBreakerName = "fixed"
    binding: BindingModeName = "optimistic"
    reservation_timeout: float = 30.0  # seconds
    seed: int = 0

    def __post_init__(self) -> None:
        causes = list(_spec_problems(self))
        if causes:
            raise _invalid_profile(self.name, causes)


@dataclass
class _ProfileReader:
    """Read the fields of a user's document and collect every problem."""

    document: Mapping[str, Any]
    causes: list[Cause] = field(default_factory=list)

    def read(self, key: str, kinds: type | tuple[type, ...], default: Any) -> Any:
        value = self.document.get(key, default)
        # In Python, bool is a subclass of int; in a profile, a bool is not a number.
        if isinstance(value, kinds) and not (isinstance(value, bool)):
            return value
        self.causes.append(Cause(key, f"must be {_FIELD_TYPES[key]}, got {_shown_value(value)}"))
        return default

    def disabled_filters(self) -> tuple[str, ...]:
        names = self.read("disabled", (list, tuple), ())
        for name in names:
            if not isinstance(name, str):
                self.causes.append(
                    Cause("disabled", f"must be {_FIELD_TYPES['disabled']}, got {_shown_value(name)} in it")
                )
        return tuple(name for name in names if isinstance(name, str))

    def reservation_timeout(self) -> Number:
        value = self.read("reservationTimeout", (int, float, Decimal, str), 30.0)
        if not isinstance(value, str):
            return cast("Number", value)
        try:
            return parse_seconds(value)
        except Invalid as error:
            self.causes.append(Cause("reservationTimeout", error.message))
            return 30.0

    def scores(self) -> Mapping[str, Any]:
        """Read the scores. A profile without any weight would choose by the tie-breaker alone, and is
        rejected."""
        scores: Mapping[str, Any] = self.read("scores", Mapping, {})
        if isinstance(self.document.get("scores", {}), Mapping) and not any(scores.values()):
            self.causes.append(
                Cause("scores", "must give at least one score a weight above 0", "FieldValueRequired")
            )
        return scores


_FIELD_TYPES = {
    "name": "a string",
    "scores": "a mapping of plugins to weights",
    "disabled": "a list of filter names",
    "tieBreaker": "a string",
    "binding": "a string",
    "reservationTimeout": 'seconds or a duration such as "30s"',
    "seed": "a whole number",
}


def parse_profile(document: Mapping[str, Any]) -> ProfileSpec:
    """Read a profile from YAML or JSON: name, scores, and optionally disabled, tieBreaker, binding,
    reservationTimeout, seed."""
    if not isinstance(document, Mapping):
        message = f"a profile is a mapping with name and scores, got {_shown_value(document)}"
        raise _invalid_profile("profile", [Cause("", message, "FieldValueRequired")])
    reader = _ProfileReader(document)
    name = reader.read("name", str, "profile")
    for key in document:
        if key not in _FIELD_TYPES:
            reader.causes.append(
                Cause(str(key), f"is not a field of a profile{did_you_mean(str(key), _FIELD_TYPES)}")
            )
    spec = _UnvalidatedSpec(
        name,
        reader.scores(),
        reader.disabled_filters(),
        reader.read("tieBreaker", str, "fixed"),
        reader.read("binding", str, "optimistic"),
        cast("float", reader.reservation_timeout()),
        reader.read("seed", int, 0),
    )
    reader.causes.extend(_spec_problems(spec))
    if reader.causes:
        raise _invalid_profile(name, reader.causes)
    weights = {plugin: float(weight) for plugin, weight in spec.scores.items()}
    return ProfileSpec(
        **{**spec.__dict__, "scores": weights, "reservation_timeout": float(spec.reservation_timeout)}
    )


class _UnvalidatedSpec(ProfileSpec):
    """A profile before its validation, with the numbers as the user wrote them: a conversion to float could
    hide or raise an error."""

    def __post_init__(self) -> None:
        """Skip validation: `parse_profile` validates the spec together with the document."""


def _spec_problems(spec: ProfileSpec) -> Iterator[Cause]:
    if not spec.name.strip():
        yield Cause("name", "must not be empty: decisions are shown under this name", "FieldValueRequired")
    for plugin, weight in spec.scores.items():
        score = str(plugin)
        where = f"scores.{score}"
        if score not in SCORES:
            yield Cause(where, f'no score "{score}"{did_you_mean(score, SCORES)}', "FieldValueNotSupported")
        if not _is_number(weight) or weight < 0:
            yield Cause(where, f"must be a number of 0 or more, got {_shown_value(weight)}")
        elif 0 < weight < MIN_WEIGHT:
            yield Cause(where, f"must be 0, or at least {MIN_WEIGHT:f}, got {_shown_value(weight)}")
        elif weight > MAX_WEIGHT:
            yield Cause(where, f"must be at most {MAX_WEIGHT}, got {_shown_value(weight)}")
    for plugin in spec.disabled:
        if plugin not in FILTERS:
            yield Cause(
                "disabled", f'no filter "{plugin}"{did_you_mean(plugin, FILTERS)}', "FieldValueNotSupported"
            )
        elif plugin in REQUIRED_FILTERS:
            yield Cause(
                "disabled",
                f"{plugin} cannot be disabled: nodes would be overcommitted",
                "FieldValueForbidden",
            )
    for key, value, names in (
        ("tieBreaker", spec.tie_breaker, TieBreakerName),
        ("binding", spec.binding, BindingModeName),
    ):
        if value not in get_args(names):
            yield Cause(
                key, f'must be one of {", ".join(get_args(names))}, got "{value}"', "FieldValueNotSupported"
            )
    timeout = spec.reservation_timeout
    if not _is_number(timeout) or timeout <= 0:
        yield Cause("reservationTimeout", f"must be above 0 seconds, got {_shown_value(timeout)}")
    elif timeout > MAX_RESERVATION_TIMEOUT_S:
        yield Cause(
            "reservationTimeout",
            f"must be at most {MAX_RESERVATION_TIMEOUT_S} seconds, got {_shown_value(timeout)}",
        )
    if spec.seed not in SEEDS:
        yield Cause("seed", f"must be from {SEEDS[0]} to {SEEDS[-1]}, got {_shown_value(spec.seed)}")


def _is_number(value: object) -> bool:
    """Whether a value is a finite number. `math.isfinite` is not called for an int, because it fails beyond
    the range of float."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _shown_value(value: object) -> str:
    """A value as the user would recognise it. Python refuses to print an int of thousands of digits."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:
        text = "." * (MAX_SHOWN_CHARS + 1)
    if len(text) <= MAX_SHOWN_CHARS:
        return text
    if isinstance(value, int):
        return f"a number of more than {MAX_SHOWN_CHARS} digits"
    return f"a {type(value).__name__} of more than {MAX_SHOWN_CHARS} characters"


def _invalid_profile(name: str, causes: list[Cause]) -> Invalid:
    missed = [
        cause.field for cause in causes if cause.reason in ("FieldValueNotSupported", "FieldValueRequired")
    ]
    unknown = [cause.field for cause in causes if "is not a field" in cause.message]
    lists = (
        ("scores", SCORES, any(not field or field.startswith("scores") for field in missed)),
        ("filters", FILTERS, "disabled" in missed),
        ("fields", _FIELD_TYPES, bool(unknown)),
    )
    return Invalid(
        "; ".join(map(str, causes)),
        where=f"profile/{name.strip() or 'profile'}",
        fix="; ".join(f"known {name}: {', '.join(names)}" for name, names, is_needed in lists if is_needed),
        causes=causes,
    )


# Above the sum of all other weights of a preset: another node is used only if no planned node fits.
PLANNED_NODES_WEIGHT = 16.0
# Every preset honours the preferences that workloads state.
_PREFERENCE_WEIGHTS = {
    "PlannedNodes": PLANNED_NODES_WEIGHT,
    "SoftSpread": 1.0,
    "PreferredNodes": 1.0,
    "PreferredWorkloads": 1.0,
    "AntiPreferred": 1.0,
    "TaintPreference": 1.0,
}


def _preset(name: str, **weights: float) -> ProfileSpec:
    return ProfileSpec(name, {**_PREFERENCE_WEIGHTS, **weights})


PRESETS: Mapping[str, ProfileSpec] = {
    spec.name: spec
    for spec in (
        _preset("balanced", BalancedResources=2.0, SpreadService=1.0, BinPacking=0.5),
        _preset("high-availability", BalancedResources=0.5, SpreadService=2.0, SoftSpread=2.0),
        _preset("resource-efficiency", BalancedResources=0.5, TightestFit=2.0),
        _preset("gpu", GpuFragmentation=1.0),
        _preset("lowest-utilisation", LeastTaken=1.0),
        _preset("fullest-first", BinPacking=1.0),
    )
}
DEFAULT_PROFILE = "balanced"
STANDALONE_PROFILE = "lowest-utilisation"  # of workloads without a service, by default


def preset(name: str) -> ProfileSpec:
    if name not in PRESETS:
        raise NotFound(f'no profile "{name}"', fix=f"use one of {', '.join(PRESETS)}, or write your own")
    return PRESETS[name]


def compile_profile(spec: ProfileSpec) -> Profile:
    """Compile a profile for the engine. Compiled profiles are compared by identity, so compile a profile only
    once."""
    filters = tuple(cast("Filter", plugin) for name, plugin in FILTERS.items() if name not in spec.disabled)
    scores = tuple(
        (cast("Score", plugin), float(spec.scores[name]))
        for name, plugin in SCORES.items()
        if spec.scores.get(name)
    )
    return Profile(spec.name, filters, scores)


def compile_preset(name: str = DEFAULT_PROFILE) -> Profile:
    return compile_profile(preset(name))
