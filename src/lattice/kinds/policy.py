"""LatticePlacementPolicy: which rules hold for which services, wherever they go?"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_SET, Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    dollars_to_micros,
    number_problems,
    share_as_fraction,
    threshold_problems,
)
from lattice.kinds.meta.selector import LabelSelector, dns_label_problem

DEFAULT_MIN_NODES = 1
DEFAULT_MAX_NODES = 20
DEFAULT_PACKING_MILLIONTHS = 800_000  # millionths: a cluster above 80 percent gets no new replicas


class SpreadConstraint(Part):
    """How evenly replicas are laid out over the fleet."""

    topology_key: Annotated[
        Literal["region", "zone", "provider", "pool", "node"],
        Meta(description="What the replicas are spread over."),
    ]
    max_skew: Annotated[
        int,
        Meta(
            ge=1, description="Largest allowed difference between the fullest and the emptiest; 1 by default."
        ),
    ] = 1


class PolicyRequirements(Part):
    """Rules that must hold, or the service is not placed."""

    min_regions: (
        Annotated[int, Meta(ge=1, description="Fewest different regions that the replicas must be in.")]
        | None
    ) = None
    compliance: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Certificates that every pool used must have.")
    ] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Capabilities that every pool used must have.")
    ] = ()
    spread_constraint: (
        Annotated[SpreadConstraint, Meta(description="How evenly replicas are laid out.")] | None
    ) = None


class SortPreference(Part):
    """One way to rank pools."""

    sort_by: Annotated[
        Literal["cost", "availableCapacity"],
        Meta(description="Rank by price per hour, or by the share of the pool that is still free."),
    ]
    order: Annotated[
        Literal["ascending", "descending"],
        Meta(description="Whether small or large comes first; ascending by default."),
    ] = "ascending"


class WeightedPreference(Part):
    """One way to rank pools, and how much it counts."""

    weight: Annotated[int, Meta(ge=0, le=100, description="How much it counts, 0 to 100.")]
    preference: Annotated[SortPreference, Meta(description="What to rank by.")]


class Consolidation(Part):
    """When clusters that are nearly empty are merged."""

    enabled: Annotated[bool, Meta(description="Whether to merge at all; false by default.")] = False
    min_utilization: (
        Annotated[
            Amount,
            Meta(
                description="A cluster used less than this share (0.3, or 30 percent) is emptied into others."
            ),
        ]
        | None
    ) = None


class ClusterPolicy(Part):
    """How clusters for these services are sized."""

    min_nodes: (
        Annotated[
            int, Meta(ge=0, description="A new cluster starts with at least so many machines; 1 by default.")
        ]
        | None
    ) = None
    max_nodes: (
        Annotated[
            int, Meta(ge=1, description="A cluster never grows beyond so many machines; 20 by default.")
        ]
        | None
    ) = None
    bin_packing_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share (0.8, or 80 percent) up to which a cluster is filled before another is made."
            ),
        ]
        | None
    ) = None
    consolidation: (
        Annotated[Consolidation, Meta(description="When clusters that are nearly empty are merged.")] | None
    ) = None
    name_prefix: Annotated[
        str, Meta(description="Goes into the name of new clusters: {pool}-{prefix}-{number}.")
    ] = ""

    @property
    def packing_millionths(self) -> int:
        return (
            DEFAULT_PACKING_MILLIONTHS
            if self.bin_packing_threshold is None
            else dollars_to_micros(share_as_fraction(self.bin_packing_threshold))
        )

    def problems(self, path: str) -> Iterator[Cause]:
        least, most = self.min_nodes or 0, self.max_nodes
        if most is not None and least > most:
            yield Cause(f"{path}.minNodes", f"must be at most maxNodes ({most}), got {least}")
        if self.name_prefix and (wrong := dns_label_problem(self.name_prefix)):
            yield Cause(f"{path}.namePrefix", wrong)
        yield from threshold_problems(f"{path}.binPackingThreshold", self.bin_packing_threshold)
        if self.consolidation and self.consolidation.min_utilization is not None:
            yield from self._consolidation_problems(f"{path}.consolidation.minUtilization")

    def _consolidation_problems(self, path: str) -> Iterator[Cause]:
        least = self.consolidation.min_utilization if self.consolidation else None
        yield from threshold_problems(path, least)
        if least is not None and dollars_to_micros(share_as_fraction(least)) >= self.packing_millionths:
            packing = self.packing_millionths / 10**6
            yield Cause(
                path,
                f"must be below binPackingThreshold ({packing:g}), or clusters would be merged as soon as they fill, got {least}",
            )


class PlacementPolicySpec(Part):
    """Whom the rules are for, and what they are."""

    selector: (
        Annotated[
            LabelSelector, Meta(description="Labels of the services; absent or empty means every service.")
        ]
        | None
    ) = None
    requirements: Annotated[PolicyRequirements, Meta(description="Rules that must hold.")] = (
        PolicyRequirements()
    )
    preferences: Annotated[
        tuple[WeightedPreference, ...], Meta(description="Wishes that rank what is left.")
    ] = ()
    cluster_policy: (
        Annotated[ClusterPolicy, Meta(description="How clusters for these services are sized.")] | None
    ) = None

    def applies_to(self, labels: dict[str, str]) -> bool:
        return self.selector is None or self.selector.matches(labels)


class PlacementPolicyStatus(Status):
    """Whom it applies to at present."""

    services: Annotated[int, Meta(description="Services that the selector matches.")] | None = None


class LatticePlacementPolicy(Kind):
    """Rules for where the services it selects may go, and how their clusters are sized. All policies that match hold together."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticePlacementPolicy",
        plural="latticeplacementpolicies",
        short_names=("lpp",),
        columns=(
            Column("MinRegions", ".spec.requirements.minRegions", "integer"),
            Column("Compliance", ".spec.requirements.compliance[*]"),
            Column("MinNodes", ".spec.clusterPolicy.minNodes", "integer"),
            Column("MaxNodes", ".spec.clusterPolicy.maxNodes", "integer"),
            Column("Services", ".status.services", "integer"),
            Column("Preferences", ".spec.preferences[*].preference.sortBy", priority=1),
            Column("Phase", ".status.phase", priority=1),
        ),
    )

    spec: PlacementPolicySpec
    status: PlacementPolicyStatus = PlacementPolicyStatus()

    def problems(self) -> Iterator[Cause]:
        bad_numbers = list(number_problems(self.spec, "spec"))
        yield from bad_numbers
        if self.spec.selector:
            yield from self.spec.selector.problems("spec.selector")
        if self.spec.cluster_policy and not bad_numbers:
            yield from self.spec.cluster_policy.problems("spec.clusterPolicy")
