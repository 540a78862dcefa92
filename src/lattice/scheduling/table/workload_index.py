"""An index of placed workloads: for a selector or service, the counts of matching workloads per node and
topology domain; and the anti-affinity terms of placed workloads."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import drop_oldest_half, max_columns, pad_rows
from lattice.kinds.constraints import WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.table.label_codes import LabelCodes
from lattice.scheduling.table.table_view import TopologyView
from lattice.scheduling.table.workload_ask import Labels, WorkloadAsk

Counts = NDArray[np.int32]

WorkloadIdentity = tuple[str, str, Labels]  # namespace, service, labels
Label = tuple[str, str]
MATCH_ALL = LabelSelector()
MAX_IDLE_CLASSES = 4096  # limit of remembered workload classes without a placed workload
MAX_CACHED_TERM_LISTS = 16_384


class _DomainCounts(NamedTuple):
    label_codes: LabelCodes
    move_count: int  # moves of nodes between domains that `counts` includes
    counts: Counts


class TopologyCounts:
    """Counts of the workloads that match a namespace, selector and service, updated as workloads come and go.

    `by_row[row]` is the count of one node; `by_domain` returns the counts by domain code of a topology key.
    """

    def __init__(self, namespace: str, selector: LabelSelector, service: str = "") -> None:
        self.namespace = namespace
        self.selector = selector
        self.service = service  # "": any
        self.by_row: Counts = np.zeros(0, np.int32)
        self._by_key: dict[str, _DomainCounts] = {}  # by topology key

    def matches(self, namespace: str, service: str, labels: Mapping[str, str]) -> bool:
        if namespace != self.namespace or (self.service and service != self.service):
            return False
        return self.selector.matches(labels)

    def add(self, table: TopologyView, row: int, change: int) -> None:
        self._grow(table)
        for key in self._by_key:
            # First bring the counts up to date: `by_domain` moves the counts of nodes that changed their
            # domain. This must happen before `by_row` includes the present change, or the change would be
            # counted twice.
            counts = self.by_domain(table, key)
            if (code := int(table.domain_codes(key)[row])) >= 0:
                counts[code] += change
        self.by_row[row] += change

    def per_node(self, table: TopologyView) -> Counts:
        self._grow(table)
        return self.by_row[: table.count]

    def by_domain(self, table: TopologyView, key: str) -> Counts:
        """Counts by domain code of the topology key; see NodeTable.domain_codes. A code that no node has
        counts 0."""
        coded, cached = table.label_codes(key), self._by_key.get(key)
        if cached is not None and cached.label_codes is coded and cached.move_count == coded.move_count:
            return cached.counts
        moves = None
        if cached is not None and cached.label_codes is coded:
            moves = coded.moves_since(cached.move_count)
        if cached is None or moves is None:
            has_code = coded.codes >= 0
            weights = self.per_node(table)[has_code]
            totals = np.bincount(coded.codes[has_code], weights=weights, minlength=len(coded.values))
            counts = totals.astype(np.int32)
        else:
            counts = pad_rows(cached.counts, len(coded.values))
            self._grow(table)
            for row, previous_code, code in moves:
                if node_count := int(self.by_row[row]):
                    if previous_code >= 0:
                        counts[previous_code] -= node_count
                    if code >= 0:
                        counts[code] += node_count
        self._by_key[key] = _DomainCounts(coded, coded.move_count, counts)
        return counts

    def _grow(self, table: TopologyView) -> None:
        if len(self.by_row) < table.count:
            self.by_row = pad_rows(self.by_row, table.count + 64)


@dataclass(slots=True, eq=False)
class WorkloadClass:
    """Workloads with equal namespace, service and labels: their number by row, and the topology counts that
    include them."""

    identity: WorkloadIdentity
    labels: dict[str, str]
    topology_counts: tuple[TopologyCounts, ...]
    count_by_row: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, change: int) -> None:
        count = self.count_by_row.get(row, 0) + change
        if count:
            self.count_by_row[row] = count
        else:
            del self.count_by_row[row]


class WorkloadIndex:
    """The workload classes and topology counts of a node table.

    Topology counts that were not used for a while are dropped, and counted anew on the next use. Classes
    without a placed workload are dropped as well.
    """

    def __init__(self, table: TopologyView) -> None:
        self._table = table
        self._topology_counts: dict[tuple[str, LabelSelector, str], TopologyCounts] = {}  # in order of use
        # By namespace, service and a label that the selector requires (None if it requires no label).
        self._counts_by_label: dict[tuple[str, str, Label | None], list[TopologyCounts]] = {}
        self._classes: dict[WorkloadIdentity, WorkloadClass] = {}
        # By namespace and service; a class is also listed by namespace and every label of its workloads.
        self._classes_by_label: dict[
            tuple[str, str] | tuple[str, Label], dict[WorkloadIdentity, WorkloadClass]
        ] = {}
        # By anti-affinity term of placed workloads, and the namespace of the workloads that the term keeps
        # away: the counts of the workloads that have the term.
        self._anti_affinity_terms: dict[tuple[str, WorkloadTerm], TopologyCounts] = {}
        # By namespace and labels of a workload: the anti-affinity terms that match the workload.
        self._terms_against: dict[object, list[tuple[WorkloadTerm, TopologyCounts]]] = {}

    def topology_counts(self, namespace: str, selector: LabelSelector, service: str) -> TopologyCounts:
        key = (namespace, selector, service)
        counts = self._topology_counts.pop(key, None)
        if counts is None:
            self._trim_counts()
            counts = TopologyCounts(namespace, selector, service)
            self._register_counts(counts)
            label = required_label(counts)
            candidates: Iterable[WorkloadClass] = self._classes.values()
            if service or label:
                candidates = self._classes_by_label.get(
                    (namespace, service) if service else (namespace, label or ("", "")), {}
                ).values()
            for workload_class in candidates:
                identity = workload_class.identity
                if counts.matches(identity[0], identity[1], workload_class.labels):
                    workload_class.topology_counts = (*workload_class.topology_counts, counts)
                    for row, count in workload_class.count_by_row.items():
                        counts.add(self._table, row, count)
        self._topology_counts[key] = counts
        return counts

    def _register_counts(self, counts: TopologyCounts) -> None:
        key = (counts.namespace, counts.service, required_label(counts))
        self._counts_by_label.setdefault(key, []).append(counts)

    def _trim_counts(self) -> None:
        previous_size = len(self._topology_counts)
        drop_oldest_half(self._topology_counts, max_columns(self._table.count))
        if len(self._topology_counts) == previous_size:
            return
        # By object identity, because equal contents do not make two counts the same.
        remaining = set(map(id, self._topology_counts.values()))
        self._counts_by_label.clear()
        for counts in self._topology_counts.values():
            self._register_counts(counts)
        for workload_class in self._classes.values():
            workload_class.topology_counts = tuple(
                counts for counts in workload_class.topology_counts if id(counts) in remaining
            )

    def update(self, ask: WorkloadAsk, row: int, change: int) -> None:
        """Count a placed (1) or removed (-1) workload."""
        demands, namespace = ask.demands, ask.demands.namespace
        identity = (namespace, demands.service, demands.labels)
        workload_class = self._classes.get(identity)
        if workload_class is None:
            self._trim_classes()
            workload_class = WorkloadClass(
                identity, dict(demands.labels), tuple(self._matching_counts(identity))
            )
            self._register_class(workload_class)
        workload_class.add(row, change)
        for counts in workload_class.topology_counts:
            counts.add(self._table, row, change)
        for term in demands.anti_affinity_terms:
            # The namespace of the workloads that the term keeps away.
            key = (term.namespace or namespace, term)
            term_counts = self._anti_affinity_terms.get(key)
            if term_counts is None:
                # A new term may match workloads whose terms are cached.
                term_counts = self._anti_affinity_terms[key] = TopologyCounts(key[0], MATCH_ALL)
                self._terms_against.clear()
            term_counts.add(self._table, row, change)
            if change < 0 and not term_counts.by_row.any():
                del self._anti_affinity_terms[key]
                self._terms_against.clear()

    def anti_affinity_against(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, TopologyCounts]]:
        if not self._anti_affinity_terms:
            return []
        identity = (ask.demands.namespace, ask.demands.labels)
        terms = self._terms_against.get(identity)
        if terms is None:
            drop_oldest_half(self._terms_against, MAX_CACHED_TERM_LISTS)
            terms = self._terms_against[identity] = [
                (term, counts)
                for (namespace, term), counts in self._anti_affinity_terms.items()
                if namespace == identity[0] and term.selector.matches(ask.labels)
            ]
        return terms

    def _matching_counts(self, identity: WorkloadIdentity) -> Iterator[TopologyCounts]:
        """Topology counts that include the workloads of the identity.

        Only counts whose selector requires no label, or a label of the identity, are checked.
        """
        namespace, service, labels = identity
        # Counts without service include the workloads of every service.
        for counted_service in dict.fromkeys((service, "")):
            for label in (None, *labels):
                for counts in self._counts_by_label.get((namespace, counted_service, label), ()):
                    if counts.selector.matches(dict(labels)):
                        yield counts

    def _register_class(self, workload_class: WorkloadClass) -> None:
        namespace, service, labels = identity = workload_class.identity
        self._classes[identity] = workload_class
        self._classes_by_label.setdefault((namespace, service), {})[identity] = workload_class
        for label in labels:
            self._classes_by_label.setdefault((namespace, label), {})[identity] = workload_class

    def _trim_classes(self) -> None:
        """Drop classes without a placed workload if the index has too many classes."""
        if len(self._classes) <= MAX_IDLE_CLASSES + 2 * len(self._table.placements):
            return
        remaining = [
            workload_class for workload_class in self._classes.values() if workload_class.count_by_row
        ]
        self._classes.clear()
        self._classes_by_label.clear()
        for workload_class in remaining:
            self._register_class(workload_class)

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "tallies": len(self._topology_counts),
            "kinds": len(self._classes),
            "repelled": len(self._terms_against),
        }


def required_label(counts: TopologyCounts) -> Label | None:
    """A label that every workload matched by the selector has; None if the selector names no label."""
    return next(iter(counts.selector.match_labels.items()), None)
