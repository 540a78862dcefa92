"""Affinity between services, in the words of the affinity between workloads, and the gang of a service."""

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.constraints import (
    Affinity,
    PreferredWorkloads,
    Weight,
    WorkloadAffinity,
    WorkloadTerm,
)
from lattice.kinds.meta.base import Part
from lattice.kinds.meta.selector import LabelSelector, dns_label_problem
from lattice.kinds.workload import SERVICE_LABEL

NODE_KEY = "node"
# Topology keys of an affinity between services. Placement decides by all keys but `node`; for `node` it sizes
# the machines, and the scheduler chooses the node.
TOPOLOGY_KEYS = ("region", "zone", "provider", "pool", "cluster", NODE_KEY)
# Names under which Kubernetes users know the key `node`.
NODE_KEY_ALIASES = ("hostname", "kubernetes.io/hostname")


class ServiceTerm(Part):
    """Replicas of a service, or workloads by label, and the topology domain in which they count as near."""

    topology_key: Annotated[
        str,
        Meta(
            description=(
                "Two replicas are near if this is equal for both: region, zone, provider, pool, cluster or "
                "node (also written hostname)."
            )
        ),
    ]
    service: Annotated[str, Meta(description="Name of the other service; or else state a selector.")] = ""
    namespace: Annotated[
        str, Meta(description="Namespace of the other workloads; the namespace of this service if absent.")
    ] = ""
    selector: (
        Annotated[
            LabelSelector,
            Meta(
                description=(
                    "Labels of the other workloads. A replica has the labels of its service, and "
                    f"{SERVICE_LABEL} with the name of the service."
                )
            ),
        ]
        | None
    ) = None

    @property
    def key(self) -> str:
        """The topology key, with the aliases of `node` resolved."""
        return NODE_KEY if self.topology_key in NODE_KEY_ALIASES else self.topology_key

    @property
    def label_selector(self) -> LabelSelector:
        """The selector of the other workloads: the stated one, or the label of the named service."""
        return self.selector or LabelSelector(match_labels={SERVICE_LABEL: self.service})

    def __str__(self) -> str:
        target = f"service {self.service}" if self.service else f"workloads {self.selector}"
        return f"{target} in namespace {self.namespace}" if self.namespace else target

    def as_workload_term(self) -> WorkloadTerm:
        return WorkloadTerm(selector=self.label_selector, topology_key=self.key, namespace=self.namespace)

    def problems(self, path: str) -> Iterator[Cause]:
        if self.key not in TOPOLOGY_KEYS:
            yield Cause(
                f"{path}.topologyKey",
                f'must be {", ".join(TOPOLOGY_KEYS[:-1])} or {NODE_KEY}, got "{self.topology_key}"',
                "FieldValueNotSupported",
            )
        if bool(self.service) == (self.selector is not None):
            stated = "both" if self.service else "neither"
            yield Cause(path, f"must state either service or selector, got {stated}")
        for name, value in (("service", self.service), ("namespace", self.namespace)):
            if value and (wrong := dns_label_problem(value)):
                yield Cause(f"{path}.{name}", wrong)
        if self.selector:
            yield from self.selector.problems(f"{path}.selector")


class PreferredServices(Part):
    """Replicas to run near or away from, and the weight of the preference."""

    weight: Weight
    term: Annotated[ServiceTerm, Meta(description="The replicas.")]


class ServiceTerms(Part):
    """Replicas that a replica must or should run near. In antiWorkload: replicas that a replica must or
    should run away from."""

    required: Annotated[tuple[ServiceTerm, ...], Meta(description="Terms that must all hold.")] = ()
    preferred: Annotated[
        tuple[PreferredServices, ...], Meta(description="Terms that only change the score.")
    ] = ()

    def problems(self, path: str) -> Iterator[Cause]:
        for index, term in enumerate(self.required):
            yield from term.problems(f"{path}.required[{index}]")
        for index, preference in enumerate(self.preferred):
            yield from preference.term.problems(f"{path}.preferred[{index}].term")

    def on_nodes(self) -> WorkloadAffinity:
        """The terms with the key `node`, for the scheduler."""
        return WorkloadAffinity(
            required=tuple(term.as_workload_term() for term in self.required if term.key == NODE_KEY),
            preferred=tuple(
                PreferredWorkloads(weight=preference.weight, term=preference.term.as_workload_term())
                for preference in self.preferred
                if preference.term.key == NODE_KEY
            ),
        )


class ServiceAffinity(Part):
    """Replicas of other services that a replica should run near, or away from."""

    workload: Annotated[ServiceTerms, Meta(description="Replicas to run near.")] = ServiceTerms()
    anti_workload: Annotated[ServiceTerms, Meta(description="Replicas to run away from.")] = ServiceTerms()

    def problems(self, path: str) -> Iterator[Cause]:
        yield from self.workload.problems(f"{path}.workload")
        yield from self.anti_workload.problems(f"{path}.antiWorkload")

    def on_nodes(self) -> Affinity | None:
        """The terms with the key `node`, as constraints of a workload; None without such a term."""
        near, away = self.workload.on_nodes(), self.anti_workload.on_nodes()
        empty = WorkloadAffinity()
        if near == away == empty:
            return None
        return Affinity(
            workload=None if near == empty else near, anti_workload=None if away == empty else away
        )
