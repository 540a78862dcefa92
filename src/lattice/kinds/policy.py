"""LatticePlacementPolicy: placement rules for services that match a selector, and the size of clusters."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_SET, Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    number_problems,
    share_to_millionths,
    threshold_problems,
)
from lattice.kinds.meta.selector import LabelSelector, dns_label_problem

DEFAULT_MIN_NODES = 1
DEFAULT_MAX_NODES = 20
# A cluster above 80 percent gets no new replicas.
DEFAULT_PACKING_MILLIONTHS = 800_000


class SpreadConstraint(Part):
    """How evenly replicas are distributed over the fleet."""

    topology_key: Annotated[
        Literal["region", "zone", "provider", "pool", "node"],
        Meta(description="Domains that the replicas are spread over."),
    ]
    max_skew: Annotated[
        int,
        Meta(
            ge=1,
            description=(
                "Largest allowed difference in replicas between the fullest and the emptiest domain; "
                "1 by default."
            ),
        ),
    ] = 1


class PolicyRequirements(Part):
    """Rules that must hold; otherwise the service is not placed."""

    min_regions: (
        Annotated[int, Meta(ge=1, description="Minimum number of different regions for the replicas.")] | None
    ) = None
    compliance: Annotated[
        tuple[str, ...],
        LIST_SET,
        Meta(description="Compliance standards that every pool must have, such as gdpr."),
    ] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Capabilities that every pool must have.")
    ] = ()
    spread_constraint: (
        Annotated[SpreadConstraint, Meta(description="How evenly replicas are distributed.")] | None
    ) = None


class SortPreference(Part):
    """A property to rank pools by."""

    sort_by: Annotated[
        Literal["cost", "availableCapacity", "proximity"],
        Meta(
            description=(
                "Rank by price per hour, by the free share of the pool's capacity, or by nearness to the "
                "services that the service calls or that call it, as far as no latency limit ties them. "
                "If no policy states proximity, its weight is 20; if none states cost or availableCapacity, "
                "the price decides between equally near pools."
            )
        ),
    ]
    order: Annotated[
        Literal["ascending", "descending"],
        Meta(
            description=(
                "Whether low or high values rank first; ascending by default. With proximity the nearest "
                "pool always ranks first."
            )
        ),
    ] = "ascending"


class WeightedPreference(Part):
    """A property to rank pools by, and its weight."""

    weight: Annotated[int, Meta(ge=0, le=100, description="Weight of the preference, 0 to 100.")]
    preference: Annotated[SortPreference, Meta(description="Property to rank by.")]


class Consolidation(Part):
    """Whether nearly empty clusters are merged, and which clusters count as nearly empty."""

    enabled: Annotated[bool, Meta(description="Whether clusters are merged; false by default.")] = False
    min_utilization: (
        Annotated[
            Amount,
            Meta(description="Share in use below which a cluster is merged: 0.3, or 30 for 30 percent."),
        ]
        | None
    ) = None


class ClusterPolicy(Part):
    """Size of the clusters of the selected services."""

    min_nodes: (
        Annotated[int, Meta(ge=0, description="Minimum number of machines of a new cluster; 1 by default.")]
        | None
    ) = None
    max_nodes: (
        Annotated[int, Meta(ge=1, description="Maximum number of machines of a cluster; 20 by default.")]
        | None
    ) = None
    bin_packing_threshold: (
        Annotated[
            Amount,
            Meta(
                description=(
                    "Share up to which a cluster is filled before Lattice creates another cluster: 0.8, "
                    "or 80 for 80 percent (the default)."
                )
            ),
        ]
        | None
    ) = None
    consolidation: Annotated[Consolidation, Meta(description="Merging of nearly empty clusters.")] | None = (
        None
    )
    name_prefix: Annotated[
        str, Meta(description="Prefix in the names of new clusters: {pool}-{prefix}-{number}.")
    ] = ""

    @property
    def packing_millionths(self) -> int:
        return (
            DEFAULT_PACKING_MILLIONTHS
            if self.bin_packing_threshold is None
            else share_to_millionths(self.bin_packing_threshold)
        )

    def problems(self, path: str) -> Iterator[Cause]:
        min_nodes, max_nodes = self.min_nodes or 0, self.max_nodes
        if max_nodes is not None and min_nodes > max_nodes:
            yield Cause(f"{path}.minNodes", f"must be at most maxNodes ({max_nodes}), got {min_nodes}")
        if self.name_prefix and (wrong := dns_label_problem(self.name_prefix)):
            yield Cause(f"{path}.namePrefix", wrong)
        yield from threshold_problems(f"{path}.binPackingThreshold", self.bin_packing_threshold)
        min_utilization = self.consolidation.min_utilization if self.consolidation else None
        if min_utilization is None:
            return
        utilization_path = f"{path}.consolidation.minUtilization"
        yield from threshold_problems(utilization_path, min_utilization)
        if share_to_millionths(min_utilization) >= self.packing_millionths:
            packing = self.packing_millionths / 10**6
            yield Cause(
                utilization_path,
                f"must be below binPackingThreshold ({packing:g}), "
                f"or clusters would be merged as soon as they fill, got {min_utilization}",
            )


class PlacementPolicySpec(Part):
    """The selected services, and the rules for their placement."""

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
        tuple[WeightedPreference, ...], Meta(description="Preferences that rank the remaining pools.")
    ] = ()
    cluster_policy: (
        Annotated[ClusterPolicy, Meta(description="Size of the clusters of these services.")] | None
    ) = None

    def applies_to(self, labels: dict[str, str]) -> bool:
        return self.selector is None or self.selector.matches(labels)


class PlacementPolicyStatus(Status):
    """Services that the policy applies to."""

    services: Annotated[int, Meta(description="Number of services that the selector matches.")] | None = None


class LatticePlacementPolicy(Kind):
    """Rules for the placement of the services that the policy selects, and for the size of their clusters.
    All matching policies apply together."""

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
        for index, weighted in enumerate(self.spec.preferences):
            if weighted.preference.sort_by == "proximity" and weighted.preference.order == "descending":
                yield Cause(
                    f"spec.preferences[{index}].preference.order",
                    'must be ascending for proximity, the nearest first, got "descending"; '
                    "weight 0 makes nearness irrelevant",
                )
        # The checks of a cluster policy compare numbers, so they run only if all numbers are valid.
        if self.spec.cluster_policy and not bad_numbers:
            yield from self.spec.cluster_policy.problems("spec.clusterPolicy")
