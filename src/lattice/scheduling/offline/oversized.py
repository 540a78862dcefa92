"""Which workloads would fit on no node even if it were empty, and what is it that they ask too much of?"""

from collections.abc import Hashable, Iterable, Iterator
from typing import NamedTuple

from lattice.kinds.container import show_amount
from lattice.scheduling.table.ask import GPU, PORTS, SLOTS, WHOLE_GPU, Demands, GpuNeed, WorkloadAsk
from lattice.scheduling.table.node_info import NodeFacts
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.ports import range_of
from lattice.scheduling.cycle.input_checks import Odd


class Amount(NamedTuple):
    resource: str
    need: int

    @property
    def key(self) -> Hashable:
        return self.resource

    @property
    def words(self) -> str:
        return f"{show_amount(self.resource, self.need)} {self.resource}"

    def most(self, missing: int) -> str:
        return show_amount(self.resource, self.need - missing)

    def missing(self, facts: NodeFacts) -> int:
        """A node that does not say how many workloads it takes takes any number."""
        return self.need - facts.totals.get(self.resource, self.need if self.resource == SLOTS else 0)


class Gpus(NamedTuple):
    need: GpuNeed

    @property
    def key(self) -> Hashable:
        return self

    @property
    def words(self) -> str:
        models = f" of model {' or '.join(self.need.models)}" if self.need.models else ""
        return f"{show_amount(GPU, self.need.total)} gpu{models}"

    def most(self, missing: int) -> str:
        return show_amount(GPU, self.need.total - missing)

    def missing(self, facts: NodeFacts) -> int:
        """Thousandths: of all that are whole together, or of the one that has most, where a part of one is asked for."""
        usable = [milli for model, milli in facts.gpus if not self.need.models or model in self.need.models]
        if self.need.milli < WHOLE_GPU:
            return self.need.milli - max(usable, default=0)
        return self.need.total - WHOLE_GPU * sum(milli >= WHOLE_GPU for milli in usable)


class Ports(NamedTuple):
    chosen: int
    fixed: frozenset[int]

    @property
    def key(self) -> Hashable:
        return self

    @property
    def words(self) -> str:
        count = self.chosen + len(self.fixed)
        return f"{count} port{'' if count == 1 else 's'}"

    def most(self, missing: int) -> str:
        return str(self.chosen + len(self.fixed) - missing)

    def missing(self, facts: NodeFacts) -> int:
        """Fixed ones outside the range that ports are chosen from take nothing from it."""
        numbers = range_of(facts)
        have = min(len(numbers), facts.totals.get(PORTS, len(numbers)))
        return self.chosen + sum(number in numbers for number in self.fixed) - have


Thing = Amount | Gpus | Ports


def too_large(asks: Iterable[WorkloadAsk], table: NodeTable) -> Iterator[Odd]:
    """Those of whom the same is to be said are told once."""
    fleet = _Empty(facts for facts in table.facts if facts is not None)
    seen: dict[Hashable, str] = {}
    told: dict[str, list[str]] = {}
    for ask in asks if fleet.sizes else ():
        demands = ask.demands
        key = (demands.requests, demands.gpu, demands.ports, demands.host_ports)
        if key not in seen:
            seen[key] = fleet.too_small_for(demands)
        if seen[key]:
            told.setdefault(seen[key], []).append(ask.name)
    for what, (first, *others) in told.items():
        alike = (
            f" (and so do {len(others):,} others)"
            if len(others) > 1
            else " (and so does another)"
            if others
            else ""
        )
        yield Odd("workload", first, f"asks for more than any node has even when empty{alike}: {what}")


class _Empty:
    """The nodes without anything on them, each size once."""

    def __init__(self, nodes: Iterable[NodeFacts]) -> None:
        self.sizes = list(
            {
                (tuple(sorted(each.totals.items())), tuple(sorted(each.gpus)), each.ports): each
                for each in nodes
            }.values()
        )
        self._best: dict[Hashable, NodeFacts] = {}

    def too_small_for(self, demands: Demands) -> str:
        """Each thing that no node has enough of; if there is none such, that no node has enough of all together; "" if one has."""
        things = list(_things(demands))
        short = [(each, each.missing(self._best_for(each))) for each in things]
        if any(missing > 0 for _, missing in short):
            return ", ".join(
                f"{each.words} of at most {each.most(missing)}" for each, missing in short if missing > 0
            )
        if any(all(each.missing(facts) <= 0 for each in things) for facts in self.sizes):
            return ""
        return f"no node has {' and '.join(each.words for each in things)} together"

    def _best_for(self, thing: Thing) -> NodeFacts:
        if thing.key not in self._best:
            self._best[thing.key] = min(self.sizes, key=thing.missing)
        return self._best[thing.key]


def _things(demands: Demands) -> Iterator[Thing]:
    """It needs a slot of its own besides those that it asks for by name, and ports by name are ports like any others."""
    asked = dict(demands.requests)
    ports = demands.ports + asked.pop(PORTS, 0)
    yield from (Amount(resource, amount + (resource == SLOTS)) for resource, amount in asked.items())
    if demands.gpu:
        yield Gpus(demands.gpu)
    if ports or demands.host_ports:
        yield Ports(ports, frozenset(number for number, _ in demands.host_ports))
