"""Resolve the affinity terms of services to the services and workloads that they match."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from lattice.kinds.constraints import WorkloadTerm
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.service import LatticeService, service_key
from lattice.kinds.service_affinity import TOPOLOGY_KEYS, ServiceTerms
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.replica_observation import is_terminating
from lattice.lifecycle.replica_template import labels_for
from lattice.placement.affinity.terms import AffinityTerm
from lattice.placement.inputs.bill import BARE_WORKLOAD_PREFIX


class AffinityMember(NamedTuple):
    """A service or bare workload to which an affinity term may refer."""

    # As the trial fleet lists it.
    name: str
    text: str
    namespace: str
    labels: tuple[tuple[str, str], ...]
    # Required anti-affinity terms of the member.
    anti_terms: tuple[WorkloadTerm, ...] = ()


def service_member(service: LatticeService) -> AffinityMember:
    affinity = service.spec.affinity
    terms = affinity.anti_workload.required if affinity else ()
    return AffinityMember(
        service_key(service),
        f"service {service.metadata.name}",
        service.metadata.namespace or DEFAULT_NAMESPACE,
        tuple(sorted(labels_for(service).items())),
        tuple(term.as_workload_term() for term in terms),
    )


def bare_members(workloads: Iterable[LatticeWorkload]) -> Iterator[AffinityMember]:
    """The workloads without a service that are not terminating."""
    for workload in workloads:
        if workload.spec.service or is_terminating(workload):
            continue
        affinity, namespace = (
            workload.spec.constraints.affinity,
            workload.metadata.namespace or DEFAULT_NAMESPACE,
        )
        anti = affinity.anti_workload if affinity else None
        # Placement knows the topology keys of services only, and no other label of a node.
        terms = tuple(term for term in anti.required if term.topology_key in TOPOLOGY_KEYS) if anti else ()
        yield AffinityMember(
            f"{BARE_WORKLOAD_PREFIX}{namespace}/{workload.metadata.name}",
            f"workload {workload.metadata.name}",
            namespace,
            tuple(sorted(workload.metadata.labels.items())),
            terms,
        )


class AffinityIndex:
    """The members of a world by namespace and label, and by member the terms that keep it away."""

    def __init__(self, members: Sequence[AffinityMember]) -> None:
        self._members = members
        self._by_label: dict[tuple[str, str, str], list[AffinityMember]] = {}
        # Repelling terms by the name of the member that they match.
        self._repelling: dict[str, list[AffinityTerm]] = {}
        for member in members:
            for key, value in member.labels:
                self._by_label.setdefault((member.namespace, key, value), []).append(member)
        for member in members:
            for term in member.anti_terms:
                repelling = AffinityTerm(member.text, term.topology_key, (member.name,), True, is_own=False)
                for target in self._matching(term, member.namespace):
                    if target != member.name:
                        self._repelling.setdefault(target, []).append(repelling)

    def terms_for(self, service: LatticeService) -> tuple[AffinityTerm, ...]:
        """The resolved terms of the service, and the terms of other members that keep it away."""
        own: list[AffinityTerm] = []
        if service.spec.affinity:
            own += self._resolved(service, service.spec.affinity.workload, is_anti=False)
            own += self._resolved(service, service.spec.affinity.anti_workload, is_anti=True)
        repelling = self._repelling.get(service_key(service), ())
        return (*own, *dict.fromkeys(repelling)) if own or repelling else ()

    def _resolved(
        self, service: LatticeService, terms: ServiceTerms, *, is_anti: bool
    ) -> Iterator[AffinityTerm]:
        namespace = service.metadata.namespace or DEFAULT_NAMESPACE
        weighted = [(term, 0) for term in terms.required]
        weighted += [(preference.term, preference.weight) for preference in terms.preferred]
        for term, weight in weighted:
            targets = self._matching(term.as_workload_term(), namespace)
            yield AffinityTerm(str(term), term.key, tuple(targets), is_anti, weight)

    def _matching(self, term: WorkloadTerm, owner_namespace: str) -> list[str]:
        """Names of the members that the term of a member in `owner_namespace` matches."""
        namespace, candidates = term.namespace or owner_namespace, self._members
        if required := next(iter(term.selector.match_labels.items()), None):
            candidates = self._by_label.get((namespace, *required), [])
        return [
            member.name
            for member in candidates
            if term.matches(member.namespace, dict(member.labels), owner_namespace)
        ]
