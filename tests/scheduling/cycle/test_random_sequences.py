"""Property test of random event sequences: no overcommit, whole gangs, no trace of what-if, and a state
independent of its history."""

from collections.abc import Coroutine, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from build.binding_store import FakeBindingStore
from build.node_tables import nodes, workload_demands
from build.property_settings import PROPERTY_TIMEOUT_S, large
from build.random_clusters import TOLERATE_ALL, Choices, facts_of, some_demands, some_node
from build.small_clusters import check_sums
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.decide import decide
from lattice.errors import Conflict
from lattice.scheduling.cycle.binder import Binder, BindingMode
from lattice.scheduling.cycle.cycle import CompositeScheduler, CycleResult
from lattice.scheduling.cycle.reservations import Reservation, Reservations
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_info import NodeInfo
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.placement import Placement
from lattice.scheduling.table.resource_fit import unfit_reason
from lattice.scheduling.table.workload_ask import WorkloadAsk
from tests.scheduling.test_properties import EVERYTHING, decision_facts

pytestmark = pytest.mark.timeout(PROPERTY_TIMEOUT_S)
NAMES = [f"n{number}" for number in range(5)]
AMPLE = dict.fromkeys(("cpu", "memory", "workloads", "ports", "fpga", "gpu"), 10**15)
EVENTS = (
    "schedule",
    "fill",
    "fill",
    "urgent",
    "urgent",
    "urgent",
    "gang",
    "assume",
    "reserve",
    "forget",
    "bind",
    "bind",
    "give up",
    "expire",
    "put",
    "drop",
    "what if",
)
BREAKS = (
    {},
    {},
    {},
    {"try_commit": OSError("reset")},
    {"prepare": OSError("reset")},
    {"commit_all": OSError("reset")},
)


def drive(step: Coroutine[Any, Any, Any]) -> Any:
    try:
        while True:
            step.send(None)
    except StopIteration as stop:
        return stop.value


class Sequence:
    """A cluster and the events that happen to it."""

    def __init__(self, drawn: bytes) -> None:
        self.choices = Choices(drawn)
        one = self.choices.one
        self.facts = {name: self._some_facts(name) for name in NAMES[: one((1, 2, 3, 4))]}
        self.table = nodes(*self.facts.values())
        plain = workload_demands(one(({"cpu": 1}, {"memory": 1}, {"cpu": 2})), tolerations=TOLERATE_ALL)
        self.kinds = [*(some_demands(self.choices) for _ in range(one((0, 1, 2)))), plain, plain]
        self.store = FakeBindingStore({name: dict(AMPLE) for name in NAMES})
        self.reservations = Reservations(self.table, timeout=5.0)
        limits = one(({}, {}, {"default/s": 1}))
        self.scheduler = CompositeScheduler(
            EVERYTHING, self.reservations, preemptor=Preemptor(self.table, EVERYTHING, dict(limits))
        )
        self.events: list[Any] = []
        self.scheduler.binder = Binder(
            self.store, self.reservations, lambda: self.now, one(tuple(BindingMode)), {}, self.events.append
        )
        self.now, self.made = 0.0, 0
        self.held: list[Reservation] = []
        self.cycles: list[CycleResult] = []
        self.shrunk: set[str] = set()  # nodes that changed below their placements and may be overcommitted

    def _some_facts(self, name: str) -> NodeInfo:
        return facts_of(some_node(self.choices, name))

    def run(self, steps: int) -> None:
        if self.choices.one((True, True, False)):
            self._fill()
        for _ in range(steps):
            self.now += self.choices.one((0.0, 1.0, 3.0))
            getattr(self, "_" + self.choices.one(EVENTS).replace(" ", "_"))()
            self.check()

    def _asks(self, count: int, among: tuple[int, ...] = (0, 1, 2), **more: Any) -> list[WorkloadAsk]:
        demands, priority = self.choices.one(self.kinds), self.choices.one(among)
        self.made += count
        named = (f"{demands.namespace}/w{self.made - number}" for number in range(count))
        return [replace(self.table.make_ask(name, demands, priority), **more) for name in named]

    def _schedule(self) -> None:
        self._cycle(self._asks(self.choices.one((1, 1, 2, 4))))

    def _fill(self) -> None:
        """Schedule and bind low-priority workloads until the cluster is full."""
        self._cycle(self._asks(self.choices.one((8, 14)), (0,)))
        self.store.breaks.clear()
        drive(self.scheduler.bind(self.cycles[-1]))

    def _urgent(self) -> None:
        self._cycle(self._asks(self.choices.one((1, 2)), (1, 2)))

    def _gang(self) -> None:
        count = self.choices.one((2, 3))
        self._cycle(
            self._asks(count, group=f"default/g{self.made}", min_member=self.choices.one((count, count - 1)))
        )

    def _cycle(self, asks: list[WorkloadAsk]) -> None:
        before, leaving = dict(self.table.placements), set(self._leaving())
        whole = {
            gang
            for gang, there in self.table.gang_sizes.items()
            if there >= max(each.ask.min_member for each in self._mates(gang))
        }
        cycle = self.scheduler.cycle([asks], self.now)
        self.cycles.append(cycle)
        self.held += [each.reservation for each in cycle.scheduled]
        assert len(cycle.scheduled) + len(cycle.unschedulable) == len(asks)
        assert all(each.reason for each in cycle.unschedulable)
        expired = {each.workload for each in cycle.expired}
        victims = {victim for victim, _ in cycle.evictions}
        assert set(before) - set(self.table.placements) <= victims | expired
        assert all(before[name].ask.priority < asks[0].priority for name in victims)
        if asks[0].group and cycle.scheduled:
            assert self.table.gang_sizes[asks[0].group] >= asks[0].min_member
        for gang in whole - {before[name].ask.group for name in expired if name in before}:
            assert not self.table.gang_sizes[gang] or self.table.gang_sizes[gang] >= max(
                each.ask.min_member for each in self._mates(gang)
            )
        for each in cycle.scheduled:
            assert {name for node, name in leaving if node == each.node} <= set(each.waits_for)

    def _mates(self, gang: str) -> list[Placement]:
        return [self.table.placements[name] for name in self.table.gang_members.get(gang, ())]

    def _leaving(self) -> Iterator[tuple[str, str]]:
        return ((node, name) for node, name, _ in self.scheduler.evictions.victims())

    def _assume(self) -> None:
        """Assume on any node; a workload that does not fit is rejected without effect."""
        (ask,) = self._asks(1)
        row = self.choices.one(range(self.table.count))
        if not unfit_reason(ask, self.table, row):
            self.table.assume(ask, row)
            return
        before = dict(self.table.placements)
        with pytest.raises(Conflict):
            self.table.assume(ask, row)
        assert self.table.placements == before

    def _reserve(self) -> None:
        (ask,) = self._asks(1)
        decision = decide(ask, self.table, EVERYTHING)
        if decision.fits:
            held = self.reservations.reserve(ask, decision.chosen, self.now)
            assert isinstance(held, Reservation)
            self.held.append(held)

    def _forget(self) -> None:
        if self.table.placements:
            self.table.forget(self.choices.one(sorted(self.table.placements)))

    def _bind(self) -> None:
        """Bind a whole cycle, of which some workloads may be gone."""
        if not self.cycles:
            return
        for _, name in sorted(self._leaving())[: self.choices.one((0, 1, 9))]:
            self.scheduler.evictions.remove_victim(name)
        cycle = self.choices.one(self.cycles[-2:])
        self.store.breaks.clear()
        self.store.breaks.update(self.choices.one(BREAKS))
        told_before = len(self.events)
        events = drive(self.scheduler.bind(cycle))
        assert self.events[told_before:] == events
        for event in events:
            there = self.table.placements.get(event.workload)
            assert (event.reservation in self.store.bound) == (event.outcome == "bound")
            assert event.outcome == "failed" or (
                there and there.state == "bound" and self.table.names[there.row] == event.node
            )

    def _give_up(self) -> None:
        if self.held:
            held = self.held.pop(self.choices.one(range(len(self.held))))
            assert self.scheduler.binder
            drive(self.scheduler.binder.rollback(held))
            drive(self.scheduler.binder.rollback(held))

    def _expire(self) -> None:
        self.reservations.expire(self.now)

    def _put(self) -> None:
        name = self.choices.one(NAMES)
        if name in self.facts and self.table.placements_by_row[self.table.row_of[name]]:
            self.shrunk.add(name)
        self.facts[name] = self._some_facts(name)
        self.table.put_node(self.facts[name])

    def _drop(self) -> None:
        if len(self.facts) > 1:
            name = self.choices.one(sorted(self.facts))
            del self.facts[name]
            self.shrunk.discard(name)
            self.scheduler.remove_node(name)

    def _what_if(self) -> None:
        before, placements = self.answers(self.table), dict(self.table.placements)
        with self.table.what_if():
            for name in sorted(placements)[: self.choices.one((0, 1, 3))]:
                self.table.forget(name)
            for ask in self._asks(2):
                decision = decide(ask, self.table, EVERYTHING)
                if decision.fits:
                    self.table.assume(ask, decision.chosen)
            with pytest.raises(Conflict, match="cannot change inside what_if"):
                self.table.remove_node(next(iter(self.facts)))
        assert self.table.placements == placements
        assert self.answers(self.table) == before

    def answers(self, table: NodeTable) -> list[Any]:
        return [
            decision_facts(decide(table.make_ask("default/new", kind), table, EVERYTHING))
            for kind in self.kinds
        ]

    def check(self) -> None:
        check_sums(self.table)
        self.shrunk = {name for name in self.shrunk if not self._has_room(name)}
        assert all(self._has_room(name) for name in self.table.row_of if name not in self.shrunk)

    def _has_room(self, name: str) -> bool:
        """Whether the node has capacity for everything placed on it."""
        row = self.table.row_of[name]
        return (
            all(self.table.free(number)[row] >= 0 for number in range(len(self.table.resources)))
            and bool((self.table.gpus.free(row) >= 0).all())
            and all(
                len(each.ports) == each.ask.demands.ports
                for each in self.table.placements_by_row[row].values()
            )
        )

    def rebuilt_table(self) -> NodeTable:
        fresh = nodes(*reversed(self.facts.values()))
        for name, each in reversed(self.table.placements.items()):
            ask = replace(
                fresh.make_ask(name, each.ask.demands, each.ask.priority),
                group=each.ask.group,
                min_member=each.ask.min_member,
            )
            fresh.restore(replace(each, ask=ask, row=fresh.row_of[self.table.names[each.row]]))
        fresh.gpu_demand.copy_progress_from(self.table.gpu_demand)
        return fresh


@large
@given(st.binary(min_size=500, max_size=500), st.sampled_from((6, 12, 20)))
def test_random_sequences_keep_invariants(drawn: bytes, steps: int) -> None:
    sequence = Sequence(drawn)
    sequence.run(steps)
    fresh = sequence.rebuilt_table()
    check_sums(fresh)
    assert sequence.answers(fresh) == sequence.answers(sequence.table)


def test_half_of_the_sequences_include_evictions() -> None:
    rng, evicting = Random(7), 0
    for _ in range(40):
        sequence = Sequence(rng.randbytes(500))
        sequence.run(12)
        evicting += any(cycle.evictions for cycle in sequence.cycles)
    assert evicting >= 20, f"{evicting} of 40"
