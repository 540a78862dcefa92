"""Who is where, by kind: tallies of those that a selector or a service means, and terms of placed workloads that keep others away."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lattice.engine.derived_columns import drop_oldest_half, max_columns, pad_rows
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.table.ask import Labels, WorkloadAsk
from lattice.scheduling.table.label_codes import LabelCodes

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable

Counts = NDArray[np.int32]


WorkloadIdentity = tuple[str, str, Labels]  # namespace, service, labels
Label = tuple[str, str]
MATCH_ALL = LabelSelector()
MAX_IDLE_CLASSES = 4096  # kinds of workloads remembered beyond those that are placed
MAX_CACHED_TERM_LISTS = 16_384


class _DomainCounts(NamedTuple):
    label_codes: LabelCodes
    move_count: int  # with the moves of nodes from domain to domain up to then
    counts: Counts


class TopologyCounts:
    """Kept up to date as workloads come and go. `nodes[row]` counts one node; `domains(key)` counts by topology code."""

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

    def add(self, table: "NodeTable", row: int, change: int) -> None:
        self._grow(table)
        for key in self._by_key:
            counts = self.by_domain(table, key)  # moves first: they took along what was on the node then
            if (code := int(table.domain_codes(key)[row])) >= 0:
                counts[code] += change
        self.by_row[row] += change

    def per_node(self, table: "NodeTable") -> Counts:
        self._grow(table)
        return self.by_row[: table.count]

    def by_domain(self, table: "NodeTable", key: str) -> Counts:
        """Counts by code of `key`; see NodeTable.codes. A code that no node has counts nothing."""
        coded, kept = table.label_codes(key), self._by_key.get(key)
        if kept is not None and kept.label_codes is coded and kept.move_count == coded.move_count:
            return kept.counts
        moves = coded.moves_since(kept.move_count) if kept is not None and kept.label_codes is coded else None
        if kept is None or moves is None:
            known = coded.codes >= 0
            here = self.per_node(table)[known]
            counts = np.bincount(coded.codes[known], weights=here, minlength=len(coded.values)).astype(
                np.int32
            )
        else:
            counts = self._apply_moves(table, pad_rows(kept.counts, len(coded.values)), moves)
        self._by_key[key] = _DomainCounts(coded, coded.move_count, counts)
        return counts

    def _apply_moves(self, table: "NodeTable", counts: Counts, moves: list[tuple[int, int, int]]) -> Counts:
        """Nodes changed their domain, and took along what is on them."""
        self._grow(table)
        for row, before, after in moves:
            if here := int(self.by_row[row]):
                if before >= 0:
                    counts[before] -= here
                if after >= 0:
                    counts[after] += here
        return counts

    def _grow(self, table: "NodeTable") -> None:
        if len(self.by_row) < table.count:
            self.by_row = pad_rows(self.by_row, table.count + 64)


if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable


@dataclass(slots=True, eq=False)
class WorkloadClass:
    """Workloads alike in namespace, service and labels: on which rows, how many, and which tallies count them."""

    identity: WorkloadIdentity
    labels: dict[str, str]
    topology_counts: tuple[TopologyCounts, ...]
    count_by_row: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, change: int) -> None:
        left = self.count_by_row.get(row, 0) + change
        if left:
            self.count_by_row[row] = left
        else:
            del self.count_by_row[row]


class WorkloadIndex:
    """Tallies that nobody asked for in a while go, and are counted anew if somebody does; so do kinds of which none is placed."""

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self._topology_counts: dict[tuple[str, LabelSelector, str], TopologyCounts] = {}  # last used last
        self._counts_by_label: dict[
            tuple[str, str, Label | None], list[TopologyCounts]
        ] = {}  # by namespace, service, and a label that they want
        self._classes: dict[WorkloadIdentity, WorkloadClass] = {}
        self._classes_by_label: dict[
            tuple[str, str] | tuple[str, Label], dict[WorkloadIdentity, WorkloadClass]
        ] = {}  # by namespace and service, and each label
        self._anti_affinity_terms: dict[
            tuple[str, WorkloadTerm], TopologyCounts
        ] = {}  # terms of placed workloads that keep others away, by term
        self._terms_against: dict[
            object, list[tuple[WorkloadTerm, TopologyCounts]]
        ] = {}  # by what a workload is, which of those mean it

    def topology_counts(self, namespace: str, selector: LabelSelector, service: str) -> TopologyCounts:
        key = (namespace, selector, service)
        tally = self._topology_counts.pop(key, None)
        if tally is None:
            self._trim_counts()
            tally = self._fill_counts(TopologyCounts(namespace, selector, service))
        self._topology_counts[key] = tally
        return tally

    def _fill_counts(self, tally: TopologyCounts) -> TopologyCounts:
        """From now on the kinds that it means count in it."""
        self._register_counts(tally)
        label, namespace = required_label(tally), tally.namespace
        likely: Iterable[WorkloadClass] = self._classes.values()
        if tally.service or label:
            likely = self._classes_by_label.get(
                (namespace, tally.service) if tally.service else (namespace, label or ("", "")), {}
            ).values()
        for kind in likely:
            if tally.matches(kind.identity[0], kind.identity[1], kind.labels):
                kind.topology_counts = (*kind.topology_counts, tally)
                for row, count in kind.count_by_row.items():
                    tally.add(self._table, row, count)
        return tally

    def _register_counts(self, tally: TopologyCounts) -> None:
        self._counts_by_label.setdefault((tally.namespace, tally.service, required_label(tally)), []).append(
            tally
        )

    def _trim_counts(self) -> None:
        before = len(self._topology_counts)
        drop_oldest_half(self._topology_counts, max_columns(self._table.count))
        if len(self._topology_counts) == before:
            return
        kept = set(map(id, self._topology_counts.values()))
        self._counts_by_label.clear()
        for tally in self._topology_counts.values():
            self._register_counts(tally)
        for kind in self._classes.values():
            kind.topology_counts = tuple(each for each in kind.topology_counts if id(each) in kept)

    def update(self, ask: WorkloadAsk, row: int, change: int) -> None:
        """So many more, or fewer, of these are there."""
        kind = self._class_of(ask)
        kind.add(row, change)
        for tally in kind.topology_counts:
            tally.add(self._table, row, change)
        for term in ask.demands.far:
            self._update_term(ask.demands.namespace, term, row, change)

    def _update_term(self, namespace: str, term: WorkloadTerm, row: int, change: int) -> None:
        carriers = self._anti_affinity_terms.get((namespace, term))
        if carriers is None:
            carriers = self._anti_affinity_terms[namespace, term] = TopologyCounts(namespace, MATCH_ALL)
            self._terms_against.clear()
        carriers.add(self._table, row, change)
        if change < 0 and not carriers.by_row.any():
            del self._anti_affinity_terms[namespace, term]
            self._terms_against.clear()

    def anti_affinity_against(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, TopologyCounts]]:
        if not self._anti_affinity_terms:
            return []
        what = (ask.demands.namespace, ask.demands.labels)
        known = self._terms_against.get(what)
        if known is None:
            drop_oldest_half(self._terms_against, MAX_CACHED_TERM_LISTS)
            known = self._terms_against[what] = [
                (term, tally)
                for (namespace, term), tally in self._anti_affinity_terms.items()
                if namespace == what[0] and term.selector.matches(ask.labels)
            ]
        return known

    def _class_of(self, ask: WorkloadAsk) -> WorkloadClass:
        demands = ask.demands
        what = (demands.namespace, demands.service, demands.labels)
        kind = self._classes.get(what)
        if kind is None:
            self._trim_classes()
            kind = WorkloadClass(what, dict(demands.labels), tuple(self._matching_counts(what)))
            self._register_class(kind)
        return kind

    def _matching_counts(self, what: WorkloadIdentity) -> Iterator[TopologyCounts]:
        """Only those are looked at that want no label, or one that these have."""
        namespace, service, labels = what
        for each in dict.fromkeys((service, "")):
            for label in (None, *labels):
                for tally in self._counts_by_label.get((namespace, each, label), ()):
                    if tally.selector.matches(dict(labels)):
                        yield tally

    def _register_class(self, kind: WorkloadClass) -> None:
        namespace, service, labels = what = kind.identity
        self._classes[what] = kind
        self._classes_by_label.setdefault((namespace, service), {})[what] = kind
        for label in labels:
            self._classes_by_label.setdefault((namespace, label), {})[what] = kind

    def _trim_classes(self) -> None:
        """Of workloads that are no longer placed, once they are many."""
        if len(self._classes) <= MAX_IDLE_CLASSES + 2 * len(self._table.placements):
            return
        kept = [kind for kind in self._classes.values() if kind.count_by_row]
        self._classes.clear()
        self._classes_by_label.clear()
        for kind in kept:
            self._register_class(kind)

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "tallies": len(self._topology_counts),
            "kinds": len(self._classes),
            "repelled": len(self._terms_against),
        }


def required_label(tally: TopologyCounts) -> Label | None:
    """One that all whom it means have; None: it names none."""
    return next(iter(tally.selector.match_labels.items()), None)
