"""Who is where, by kind: tallies of those that a selector or a service means, and terms of placed workloads that keep others away."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lattice.engine.derived_columns import keep_last, most_columns
from lattice.kinds.constraint import WorkloadTerm
from lattice.kinds.meta.selector import LabelSelector
from lattice.scheduling.table.ask import Labels, WorkloadAsk
from lattice.scheduling.table.tally import Tally

if TYPE_CHECKING:
    from lattice.scheduling.table.node_table import NodeTable

What = tuple[str, str, Labels]  # namespace, service, labels
Label = tuple[str, str]
EVERYTHING = LabelSelector()
KINDS_KEPT = 4096  # kinds of workloads remembered beyond those that are placed
REPELLED_KEPT = 16_384


@dataclass(slots=True, eq=False)
class Kind:
    """Workloads alike in namespace, service and labels: on which rows, how many, and which tallies count them."""

    what: What
    labels: dict[str, str]
    tallies: tuple[Tally, ...]
    rows: dict[int, int] = field(default_factory=dict)

    def add(self, row: int, change: int) -> None:
        left = self.rows.get(row, 0) + change
        if left:
            self.rows[row] = left
        else:
            del self.rows[row]


class Census:
    """Tallies that nobody asked for in a while go, and are counted anew if somebody does; so do kinds of which none is placed."""

    def __init__(self, table: "NodeTable") -> None:
        self._table = table
        self._tallies: dict[tuple[str, LabelSelector, str], Tally] = {}  # last used last
        self._tallies_by: dict[
            tuple[str, str, Label | None], list[Tally]
        ] = {}  # by namespace, service, and a label that they want
        self._kinds: dict[What, Kind] = {}
        self._kinds_by: dict[
            tuple[str, str] | tuple[str, Label], dict[What, Kind]
        ] = {}  # by namespace and service, and each label
        self._repulsed: dict[
            tuple[str, WorkloadTerm], Tally
        ] = {}  # terms of placed workloads that keep others away, by term
        self._repelled: dict[
            object, list[tuple[WorkloadTerm, Tally]]
        ] = {}  # by what a workload is, which of those mean it

    def tally(self, namespace: str, selector: LabelSelector, service: str) -> Tally:
        key = (namespace, selector, service)
        tally = self._tallies.pop(key, None)
        if tally is None:
            self._forget_tallies()
            tally = self._counted(Tally(namespace, selector, service))
        self._tallies[key] = tally
        return tally

    def _counted(self, tally: Tally) -> Tally:
        """From now on the kinds that it means count in it."""
        self._list(tally)
        label, namespace = label_of(tally), tally.namespace
        likely: Iterable[Kind] = self._kinds.values()
        if tally.service or label:
            likely = self._kinds_by.get(
                (namespace, tally.service) if tally.service else (namespace, label or ("", "")), {}
            ).values()
        for kind in likely:
            if tally.matches(kind.what[0], kind.what[1], kind.labels):
                kind.tallies = (*kind.tallies, tally)
                for row, count in kind.rows.items():
                    tally.add(self._table, row, count)
        return tally

    def _list(self, tally: Tally) -> None:
        self._tallies_by.setdefault((tally.namespace, tally.service, label_of(tally)), []).append(tally)

    def _forget_tallies(self) -> None:
        before = len(self._tallies)
        keep_last(self._tallies, most_columns(self._table.count))
        if len(self._tallies) == before:
            return
        kept = set(map(id, self._tallies.values()))
        self._tallies_by.clear()
        for tally in self._tallies.values():
            self._list(tally)
        for kind in self._kinds.values():
            kind.tallies = tuple(each for each in kind.tallies if id(each) in kept)

    def count(self, ask: WorkloadAsk, row: int, change: int) -> None:
        """So many more, or fewer, of these are there."""
        kind = self._kind(ask)
        kind.add(row, change)
        for tally in kind.tallies:
            tally.add(self._table, row, change)
        for term in ask.demands.far:
            self._count_carrier(ask.demands.namespace, term, row, change)

    def _count_carrier(self, namespace: str, term: WorkloadTerm, row: int, change: int) -> None:
        carriers = self._repulsed.get((namespace, term))
        if carriers is None:
            carriers = self._repulsed[namespace, term] = Tally(namespace, EVERYTHING)
            self._repelled.clear()
        carriers.add(self._table, row, change)
        if change < 0 and not carriers.nodes.any():
            del self._repulsed[namespace, term]
            self._repelled.clear()

    def repulsed_by(self, ask: WorkloadAsk) -> list[tuple[WorkloadTerm, Tally]]:
        if not self._repulsed:
            return []
        what = (ask.demands.namespace, ask.demands.labels)
        known = self._repelled.get(what)
        if known is None:
            keep_last(self._repelled, REPELLED_KEPT)
            known = self._repelled[what] = [
                (term, tally)
                for (namespace, term), tally in self._repulsed.items()
                if namespace == what[0] and term.selector.matches(ask.labels)
            ]
        return known

    def _kind(self, ask: WorkloadAsk) -> Kind:
        demands = ask.demands
        what = (demands.namespace, demands.service, demands.labels)
        kind = self._kinds.get(what)
        if kind is None:
            self._forget_kinds()
            kind = Kind(what, dict(demands.labels), tuple(self._tallies_of(what)))
            self._keep(kind)
        return kind

    def _tallies_of(self, what: What) -> Iterator[Tally]:
        """Only those are looked at that want no label, or one that these have."""
        namespace, service, labels = what
        for each in dict.fromkeys((service, "")):
            for label in (None, *labels):
                for tally in self._tallies_by.get((namespace, each, label), ()):
                    if tally.selector.matches(dict(labels)):
                        yield tally

    def _keep(self, kind: Kind) -> None:
        namespace, service, labels = what = kind.what
        self._kinds[what] = kind
        self._kinds_by.setdefault((namespace, service), {})[what] = kind
        for label in labels:
            self._kinds_by.setdefault((namespace, label), {})[what] = kind

    def _forget_kinds(self) -> None:
        """Of workloads that are no longer placed, once they are many."""
        if len(self._kinds) <= KINDS_KEPT + 2 * len(self._table.placements):
            return
        kept = [kind for kind in self._kinds.values() if kind.rows]
        self._kinds.clear()
        self._kinds_by.clear()
        for kind in kept:
            self._keep(kind)

    @property
    def sizes(self) -> dict[str, int]:
        return {"tallies": len(self._tallies), "kinds": len(self._kinds), "repelled": len(self._repelled)}


def label_of(tally: Tally) -> Label | None:
    """One that all whom it means have; None: it names none."""
    return next(iter(tally.selector.match_labels.items()), None)
