"""Which plugins decide with what weights, and how a decision is tied, reserved and bound: profiles as data."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol, cast, get_args

from lattice.engine.plugin import Filter, Profile, Rejections, Scope, Score
from lattice.engine.table import Floats
from lattice.errors import Cause, Invalid, NotFound
from lattice.kinds.meta.quantity import parse_seconds
from lattice.kinds.meta.spelling import nearest
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.plugins.cluster_events import Change
from lattice.scheduling.plugins.scores.anti_preferred import AntiPreferred
from lattice.scheduling.plugins.scores.balanced_resources import BalancedResources
from lattice.scheduling.plugins.scores.bin_packing import BinPacking
from lattice.scheduling.plugins.filters.fit import Fit
from lattice.scheduling.plugins.scores.gpu_fragmentation import GpuFragmentation
from lattice.scheduling.plugins.filters.gpu import Gpu
from lattice.scheduling.plugins.filters.host_ports import HostPorts
from lattice.scheduling.plugins.filters.in_cluster import InCluster
from lattice.scheduling.plugins.filters.reserved_nodes import Kept
from lattice.scheduling.plugins.scores.least_allocated import LeastTaken
from lattice.scheduling.plugins.filters.licence import Licence
from lattice.scheduling.plugins.filters.machine_image import MachineImage
from lattice.scheduling.plugins.filters.node_affinity import NodeAffinity
from lattice.scheduling.plugins.filters.node_selector import NodeSelector
from lattice.scheduling.plugins.scores.node_preference import PreferredNodes
from lattice.scheduling.plugins.scores.preferred_affinity import PreferredWorkloads
from lattice.scheduling.plugins.scores.price import Price
from lattice.scheduling.plugins.filters.ready import Ready
from lattice.scheduling.plugins.filters.runtime import Runtime
from lattice.scheduling.plugins.scores.soft_spread import SoftSpread
from lattice.scheduling.plugins.scores.service_spread import SpreadService
from lattice.scheduling.plugins.scores.taint_preference import TaintPreference
from lattice.scheduling.plugins.filters.taints import Taints
from lattice.scheduling.plugins.scores.tightest_fit import TightestFit
from lattice.scheduling.plugins.filters.topology_spread import TopologySpread
from lattice.scheduling.plugins.filters.volume_zone import VolumeZone
from lattice.scheduling.plugins.filters.inter_workload_affinity import WorkloadAffinity
from lattice.scheduling.plugins.filters.workload_anti_affinity import WorkloadAntiAffinity

TieBreaker = Literal["fixed", "random", "least-loaded", "round-robin", "weighted-random", "affinity-based"]
Binding = Literal["optimistic", "pessimistic", "two-phase"]


class NodeFilter(Protocol):
    """An engine Filter whose asks are workloads; wide ones are given the NodeTable itself."""

    name: ClassVar[str]
    scope: ClassVar[Scope]
    wakes_on: ClassVar[frozenset[Change]]

    def applies(self, ask: WorkloadAsk) -> bool: ...
    def filter(self, ask: WorkloadAsk, rows: Any) -> Rejections: ...


class NodeScore(Protocol):
    name: ClassVar[str]
    scope: ClassVar[Scope]

    def applies(self, ask: WorkloadAsk) -> bool: ...
    def score(self, ask: WorkloadAsk, rows: Any) -> Floats: ...


_FILTERS: tuple[NodeFilter, ...] = (  # a node that several rule out is counted for the first of them
    Ready(),
    InCluster(),
    Kept(),
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
    TopologySpread(),
)
_SCORES: tuple[NodeScore, ...] = (
    BalancedResources(),
    BinPacking(),
    TightestFit(),
    GpuFragmentation(),
    LeastTaken(),
    SpreadService(),
    SoftSpread(),
    PreferredNodes(),
    PreferredWorkloads(),
    AntiPreferred(),
    TaintPreference(),
    Price(),
)
FILTERS: Mapping[str, NodeFilter] = {each.name: each for each in _FILTERS}
SCORES: Mapping[str, NodeScore] = {each.name: each for each in _SCORES}
VITAL = ("Fit", "Gpu", "HostPorts")  # without these a node would be given more than it has
HEAVIEST = 1_000_000  # so that a weighted sum of all scores still tells small differences apart as float32
LIGHTEST = 0.000001  # less would be lost beside any other score, or be 0 as a float32
LONGEST_TIMEOUT = (
    86_400  # seconds; room that is held for over a day without being used is forgotten, not reserved
)
LONGEST_SHOWN = 100  # characters of a refused value
SEEDS = range(-(1 << 63), 1 << 63)
Number = int | float | Decimal  # decimals are what a manifest's numbers with a point are read as


@dataclass(frozen=True)
class ProfileSpec:
    """What a profile says, as a user writes it."""

    name: str
    scores: Mapping[str, float]
    disabled: tuple[str, ...] = ()  # filters
    tie_breaker: TieBreaker = "fixed"
    binding: Binding = "optimistic"
    reservation_timeout: float = 30.0  # seconds
    seed: int = 0

    def __post_init__(self) -> None:
        causes = list(_spec_problems(self))
        if causes:
            raise _refused(self.name, causes)


@dataclass
class _Reading:
    """A user's mapping, field by field, with everything that is wrong gathered."""

    given: Mapping[str, Any]
    causes: list[Cause] = field(default_factory=list)

    def take(self, key: str, kinds: type | tuple[type, ...], default: Any) -> Any:
        value = self.given.get(key, default)
        if isinstance(value, kinds) and not (isinstance(value, bool)):
            return value
        self.causes.append(Cause(key, f"must be {_KIND_NAMES[key]}, got {_shown(value)}"))
        return default

    def filters(self) -> tuple[str, ...]:
        named = self.take("disabled", (list, tuple), ())
        for each in named:
            if not isinstance(each, str):
                self.causes.append(
                    Cause("disabled", f"must be {_KIND_NAMES['disabled']}, got {_shown(each)} in it")
                )
        return tuple(each for each in named if isinstance(each, str))

    def seconds(self) -> Number:
        value = self.take("reservationTimeout", (int, float, Decimal, str), 30.0)
        if not isinstance(value, str):
            return cast("Number", value)
        try:
            return parse_seconds(value)
        except Invalid as error:
            self.causes.append(Cause("reservationTimeout", error.what))
            return 30.0

    def scores(self) -> Mapping[str, Any]:
        """A profile without any would choose by the tie-breaker alone, which nobody means who writes one."""
        scores: Mapping[str, Any] = self.take("scores", Mapping, {})
        if isinstance(self.given.get("scores", {}), Mapping) and not any(scores.values()):
            self.causes.append(
                Cause("scores", "must give at least one score a weight above 0", "FieldValueRequired")
            )
        return scores


_KIND_NAMES = {
    "name": "a text",
    "scores": "a list of plugin: weight",
    "disabled": "a list of filter names",
    "tieBreaker": "a text",
    "binding": "a text",
    "reservationTimeout": 'seconds or a duration such as "30s"',
    "seed": "a whole number",
}


def parse_profile(given: Mapping[str, Any]) -> ProfileSpec:
    """From YAML or JSON: name, scores, and if wanted disabled, tieBreaker, binding, reservationTimeout, seed."""
    if not isinstance(given, Mapping):
        raise _refused(
            "profile",
            [
                Cause(
                    "",
                    f"a profile is a mapping with name and scores, got {_shown(given)}",
                    "FieldValueRequired",
                )
            ],
        )
    reading = _Reading(given)
    name = reading.take("name", str, "profile")
    for key in given:
        if key not in _KIND_NAMES:
            reading.causes.append(
                Cause(str(key), f"is not a field of a profile{nearest(str(key), _KIND_NAMES)}")
            )
    spec = _Unchecked(
        name,
        reading.scores(),
        reading.filters(),
        reading.take("tieBreaker", str, "fixed"),
        reading.take("binding", str, "optimistic"),
        cast("float", reading.seconds()),
        reading.take("seed", int, 0),
    )
    reading.causes.extend(_spec_problems(spec))
    if reading.causes:
        raise _refused(name, reading.causes)
    weights = {plugin: float(weight) for plugin, weight in spec.scores.items()}
    return ProfileSpec(
        **{**spec.__dict__, "scores": weights, "reservation_timeout": float(spec.reservation_timeout)}
    )


class _Unchecked(ProfileSpec):
    """Numbers are as they were given: what is wrong with one can be said before it is a float."""

    def __post_init__(self) -> None:
        """Whoever makes one checks it together with everything else."""


def _spec_problems(spec: ProfileSpec) -> Iterator[Cause]:
    if not spec.name.strip():
        yield Cause("name", "must not be empty: decisions are shown under it", "FieldValueRequired")
    for plugin, weight in spec.scores.items():
        yield from _weight_problems(str(plugin), weight)
    for plugin in spec.disabled:
        if plugin not in FILTERS:
            yield Cause(
                "disabled", f'no filter "{plugin}"{nearest(plugin, FILTERS)}', "FieldValueNotSupported"
            )
        elif plugin in VITAL:
            yield Cause(
                "disabled",
                f"{plugin} cannot be disabled: nodes would be given more than they have",
                "FieldValueForbidden",
            )
    for key, value, known in (
        ("tieBreaker", spec.tie_breaker, TieBreaker),
        ("binding", spec.binding, Binding),
    ):
        if value not in get_args(known):
            yield Cause(
                key, f'must be one of {", ".join(get_args(known))}, got "{value}"', "FieldValueNotSupported"
            )
    timeout = spec.reservation_timeout
    if not _is_number(timeout) or timeout <= 0:
        yield Cause("reservationTimeout", f"must be above 0 seconds, got {_shown(timeout)}")
    elif timeout > LONGEST_TIMEOUT:
        yield Cause("reservationTimeout", f"must be at most {LONGEST_TIMEOUT} seconds, got {_shown(timeout)}")
    if spec.seed not in SEEDS:
        yield Cause("seed", f"must be from {SEEDS[0]} to {SEEDS[-1]}, got {_shown(spec.seed)}")


def _weight_problems(plugin: str, weight: Any) -> Iterator[Cause]:
    where = f"scores.{plugin}"
    if plugin not in SCORES:
        yield Cause(where, f'no score "{plugin}"{nearest(plugin, SCORES)}', "FieldValueNotSupported")
    if not _is_number(weight) or weight < 0:
        yield Cause(where, f"must be a number of 0 or more, got {_shown(weight)}")
    elif 0 < weight < LIGHTEST:
        yield Cause(where, f"must be 0, or at least {LIGHTEST:f}, got {_shown(weight)}")
    elif weight > HEAVIEST:
        yield Cause(where, f"must be at most {HEAVIEST}, got {_shown(weight)}")


def _is_number(value: object) -> bool:
    """Finite, and so can be compared; whole numbers may be beyond any float."""
    if isinstance(value, Decimal):
        return value.is_finite()
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _shown(value: object) -> str:
    """As the user would recognise it. Python refuses to print whole numbers of thousands of digits."""
    try:
        text = str(value) if isinstance(value, Decimal) else repr(value)
    except ValueError:
        text = "." * (LONGEST_SHOWN + 1)
    if len(text) <= LONGEST_SHOWN:
        return text
    if isinstance(value, int):
        return f"a number of more than {LONGEST_SHOWN} digits"
    return f"a {type(value).__name__} of more than {LONGEST_SHOWN} characters"


def _refused(name: str, causes: list[Cause]) -> Invalid:
    return Invalid(
        "; ".join(map(str, causes)),
        where=f"profile/{name.strip() or 'profile'}",
        fix=_choices(causes),
        causes=causes,
    )


def _choices(causes: list[Cause]) -> str:
    """Every list that somebody picked something from that is not in it, once."""
    missed = [
        cause.field for cause in causes if cause.reason in ("FieldValueNotSupported", "FieldValueRequired")
    ]
    unknown = [cause.field for cause in causes if "is not a field" in cause.message]
    lists = (
        ("scores", SCORES, any(not field or field.startswith("scores") for field in missed)),
        ("filters", FILTERS, "disabled" in missed),
        ("fields", _KIND_NAMES, bool(unknown)),
    )
    return "; ".join(f"known {name}: {', '.join(known)}" for name, known, is_asked in lists if is_asked)


_WISHES = {
    "SoftSpread": 1.0,
    "PreferredNodes": 1.0,
    "PreferredWorkloads": 1.0,
    "AntiPreferred": 1.0,
    "TaintPreference": 1.0,
}


def _preset(name: str, **weights: float) -> ProfileSpec:
    return ProfileSpec(name, {**_WISHES, **weights})


PRESETS: Mapping[str, ProfileSpec] = {
    each.name: each
    for each in (
        _preset("balanced", BalancedResources=2.0, SpreadService=1.0, BinPacking=0.5),
        _preset("high-availability", BalancedResources=0.5, SpreadService=2.0, SoftSpread=2.0),
        _preset("resource-efficiency", BalancedResources=0.5, TightestFit=2.0),
        _preset("gpu", GpuFragmentation=1.0),
        _preset("lowest-utilisation", LeastTaken=1.0),
        _preset("fullest-first", BinPacking=1.0),
    )
}
DEFAULT = "balanced"
PLAIN = "lowest-utilisation"  # of workloads that belong to no service, where nobody names a profile


def preset(name: str) -> ProfileSpec:
    if name not in PRESETS:
        raise NotFound(f'no profile "{name}"', fix=f"use one of {', '.join(PRESETS)}, or write your own")
    return PRESETS[name]


def compile_profile(spec: ProfileSpec) -> Profile:
    """For the engine. Profiles are compared by identity: compile once and keep the result."""
    filters = tuple(cast("Filter", each) for name, each in FILTERS.items() if name not in spec.disabled)
    scores = tuple(
        (cast("Score", each), float(spec.scores[name]))
        for name, each in SCORES.items()
        if spec.scores.get(name)
    )
    return Profile(spec.name, filters, scores)


def compile_preset(name: str = DEFAULT) -> Profile:
    return compile_profile(preset(name))
