"""Bugs planted on purpose, one at a time, in the real code: a checker that does not find them would find nothing else either."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec

from lattice.agent import loop as agent_loop
from lattice.agent import work
from lattice.clock import Clock
from lattice.controllers import bindings, clusters, departures, disruptions, ledgers, nodes, office, placing, replicas, supply, turns
from lattice.errors import Conflict, Gone
from lattice.placement import machines, money, rollout
from lattice.scheduling import facts, noderules, prepared, schedule
from lattice.scheduling.plugins import ready, taints
from lattice.server import joining, verbs, write
from lattice.store import cache, leader, memory
from lattice.store.protocol import Clash, Key, Put


@dataclass(frozen=True)
class Planted:
    """`finds`: the invariants that it breaks."""

    what: str
    finds: tuple[str, ...]
    plant: Callable[[], None]


def _swap(owner: object, name: str, other: object) -> None:
    """What the code calls by that name is the other from now on."""
    if not hasattr(owner, name):
        raise AttributeError(f"{owner} has no {name}: this bug cannot be planted any more")
    setattr(owner, name, other)


def _no_fence() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        revision: int = await self.store.commit(writes, checks=checks, request_id=request_id)
        return revision

    _swap(office.Office, "commit", commit)


def _fence_read_again() -> None:
    async def commit(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        held = self.store.store.held(self.term.role)
        revision: int = await self.store.commit(writes, checks=checks, fence=held or self.term, request_id=request_id)
        return revision

    _swap(office.Office, "commit", commit)


def _no_compare() -> None:
    _swap(memory, "refuse_clash", lambda writes, checks, found: None)


def _blind_ledger() -> None:
    """Reads, adds and writes, whatever others wrote meanwhile."""
    put = ledgers.Ledgers._put

    def blind(self: Any, before: Any, after: Any, expect: int) -> Put:
        return msgspec.structs.replace(put(self, before, after, expect), expect=None)

    async def commit(self: Any, payment: Any, settled: Any, read: Any) -> int:
        await asyncio.sleep(0.3)
        revision: int = await self.store.commit([*payment.writes, *settled.puts], checks=payment.checks, fence=self.term)
        return revision

    _swap(ledgers.Ledgers, "_put", blind)
    _swap(ledgers.Ledgers, "_commit", commit)


def _no_limit() -> None:
    settle = money.settle

    def generous(ledger: Any, releases: Any, charges: Any, now: datetime) -> Any:
        limit = ledger.spec.limit_micros
        open_ended = msgspec.structs.replace(ledger, spec=msgspec.structs.replace(ledger.spec, limit_micros=None))
        after, answer = settle(open_ended, releases, charges, now)
        return msgspec.structs.replace(after, spec=msgspec.structs.replace(after.spec, limit_micros=limit)), answer

    _swap(ledgers, "settle", generous)


def _float_money() -> None:
    accrue = money.accrue

    def rounded(ledger: Any, now: datetime) -> Any:
        after = accrue(ledger, now)
        return msgspec.structs.replace(after, status=msgspec.structs.replace(after.status, remainder=0))

    _swap(money, "accrue", rounded)


def _unpaid_machines() -> None:
    _swap(placing, "charges", lambda fleet, cluster, counts, paid: [])


def _paid_back_too_early() -> None:
    """The money is free again before the machine is confirmed to be gone."""
    remove = clusters.Clusters._remove

    async def early(self: Any, provider: Any, name: str, found: Any) -> None:
        class Later:
            async def delete(self, node: str) -> None:
                asyncio.get_running_loop().call_later(4.0, lambda: asyncio.ensure_future(provider.delete(node)))

        await remove(self, Later(), name, found)  # type: ignore[arg-type]

    _swap(clusters.Clusters, "_remove", early)


def _removed_with_work() -> None:
    steps = machines.steps

    def hasty(cluster: str, found: Any) -> Any:
        return replace(steps(cluster, replace(found, nodes=[replace(each, workloads=0) for each in found.nodes])))

    _swap(clusters, "steps", hasty)


def _stop_before_switch() -> None:
    """Old replicas go at once; new ones come when they come."""
    _swap(rollout, "_spare", lambda unwanted, total, live: tuple(each.name for each in unwanted))


def _drain_below_least() -> None:
    drain = noderules.drain
    _swap(departures, "drain", lambda residents, services, most=1: drain(residents, {}, most))


def _prepared_for_ever() -> None:
    _swap(prepared.Prepared, "is_over", lambda self, now: False)


def _wall_clock_lease() -> None:
    class Wall:
        def __init__(self, clock: Clock) -> None:
            self.now, self.sleep, self.alarm = clock.now, clock.sleep, clock.alarm

        def monotonic(self) -> float:
            return self.now().timestamp()

    made = leader.Election.__post_init__

    def with_wall(self: Any) -> None:
        made(self)
        self.clock = Wall(self.clock)

    _swap(leader.Election, "__post_init__", with_wall)


def _swallowed_gap() -> None:
    """A watch that has fallen too far behind goes on as if nothing was missed."""
    follow = cache.Cache._follow

    async def deaf(self: Any) -> None:
        try:
            await follow(self)
        except Gone:
            self._listed = await self.store.revision()

    _swap(cache.Cache, "_follow", deaf)


def _missed_deletions() -> None:
    apply = cache.Cache._apply

    def forgetful(self: Any, change: Any) -> None:
        if change.value is not None or change.revision % 7:
            apply(self, change)

    _swap(cache.Cache, "_apply", forgetful)


def _started_twice() -> None:
    """An agent that starts anew does not take over what runs, and starts it once more."""

    async def adopt(self: Any) -> None:
        return None

    _swap(work.Work, "adopt", adopt)


def _moved_too_soon() -> None:
    failover = noderules.failover

    def hasty(disconnect: Any, node: Any, releases: Any, times: Any) -> Any:
        if node.silence >= times.not_ready_after:
            return noderules.Failover(True, "it is silent")
        return failover(disconnect, node, releases, times)

    _swap(nodes, "failover", hasty)


def _certain_too_soon() -> None:
    """Strict copies are taken to be dead at the moment at which their node begins to count."""
    _swap(noderules.NodeTimes, "certain_after", lambda self, stop_after: 1.0)
    _swap(
        nodes,
        "release",
        lambda seen, before, now, times: noderules.Releases(
            noderules.Allowance(frozenset(each.name for each in seen if each.silence >= times.not_ready_after)), {}, {}, 1.0
        ),
    )
    failover = noderules.failover
    _swap(
        nodes,
        "failover",
        lambda disconnect, node, releases, times: failover(disconnect, node, releases, replace(times, replace_after=times.not_ready_after)),
    )


def _contact_when_answered() -> None:
    """A node counts its silence from when the answer came, not from when it asked."""

    async def heard(self: Any, beat: int) -> None:
        self.unanswered = {number: at for number, at in self.unanswered.items() if number > beat}
        await self.agent.contact(self.clock.monotonic() + 12.0)

    _swap(agent_loop.Conversation, "_heard", heard)


def _nothing(self: Any, ask: Any, rows: Any) -> dict[Any, Any]:
    return {}


def _twice_the_room() -> None:
    room = facts.allocatable
    _swap(facts, "allocatable", lambda node: {name: 2 * amount for name, amount in room(node).items()})


def _no_ready_check() -> None:
    _swap(ready.Ready, "filter", _nothing)


def _no_taint_check() -> None:
    _swap(taints.Taints, "filter", _nothing)
    _swap(ready.Ready, "filter", _nothing)


def _broken_gang() -> None:
    _swap(schedule.CompositeScheduler, "still_needed", lambda self, ask, of_which=0: 0)


def _no_lock() -> None:
    async def lock(self: Any, node: str, holder: str, until: float) -> str:
        return holder

    async def unlock(self: Any, node: str, token: str) -> None:
        return None

    _swap(bindings.StoreLedger, "lock", lock)
    _swap(bindings.StoreLedger, "unlock", unlock)


def _lost_write() -> None:
    """Acknowledged, and never written."""

    async def replaced(api: Any, key: Key, old: Any, new: Any, value: bytes) -> int:
        return int(await api.store.revision()) + 1

    _swap(write, "_replace", replaced)


def _written_and_refused() -> None:
    insert = write._insert

    async def inserted(api: Any, served: Any, key: Key, value: bytes) -> int:
        await insert(api, served, key, value)
        raise Conflict("somebody else was first")

    _swap(write, "_insert", inserted)


def _stale_reads() -> None:
    known: dict[Any, Any] = {}
    existing = verbs.existing

    async def old(api: Any, call: Any) -> Any:
        entry = await existing(api, call)
        if call.method != "GET":
            return entry
        return known.setdefault(entry.key, entry)

    _swap(verbs, "existing", old)


def _foreign_node() -> None:
    """A machine that joins marks somebody else's node, too."""
    node = joining.Joining._node

    def greedy(self: Any, name: str, kept: Any, asked: Any, found: Any) -> Put:
        return msgspec.structs.replace(node(self, name, kept, asked, found), key=joining.node_key("rack-1"), expect=None)

    _swap(joining.Joining, "_node", greedy)


def _trickling_status() -> None:
    _swap(supply, "steadied", lambda before, after: after)


def _given_up_after_conflict() -> None:
    """Neither is it tried again, nor does anybody look at everything from time to time: either alone would heal it."""

    def failed(self: Any, key: str, pause: Any) -> float:
        self._in_hand.pop(key)
        return 0.0

    wake = turns.Turns.wake

    def deaf(self: Any, key: str, lane: turns.Lane = turns.Lane.ORDINARY) -> None:
        if lane is not turns.Lane.BACKGROUND:
            wake(self, key, lane)

    _swap(turns.Turns, "failed", failed)
    _swap(turns.Turns, "wake", deaf)


def _surplus_kept() -> None:
    stopping = replicas.Replicas._stopping
    _swap(replicas.Replicas, "_stopping", lambda self, mine, names: stopping(self, mine, names[:0]))


def _restless() -> None:
    """Whoever is as he should be is replaced all the same, one after the other."""
    steps = rollout.next_steps

    def restless(wanted: Any, revision: str, found: Any, least: int = 0) -> Any:
        asked, live = steps(wanted, revision, found, least), [each for each in found if not each.is_going]
        is_fine = asked.is_none and len(live) == sum(wanted.values()) and all(each.is_ready for each in live)
        return replace(asked, start=tuple(sorted(wanted))[:1]) if is_fine else asked

    _swap(replicas, "next_steps", restless)


def _room_below_least() -> None:
    _swap(disruptions, "may_displace", lambda found: found.available)


def _same_again() -> None:
    """Who loses a race writes the same once more, without reading what is there."""
    commit = office.Office.commit

    async def stubborn(self: Any, writes: Any, checks: Any = (), request_id: Any = None) -> int:
        for _ in range(9):
            try:
                return await commit(self, writes, checks, request_id)
            except Clash:
                await self.clock.sleep(0.4)
        return await commit(self, writes, checks, request_id)

    _swap(office.Office, "commit", stubborn)


PLANTED: dict[str, Planted] = {
    "no-fence": Planted("controllers write without a fence", ("I-09",), _no_fence),
    "fence-read-again": Planted("the term is read again before each write", ("I-08", "I-09"), _fence_read_again),
    "no-compare": Planted("the store compares no revisions", ("I-11", "I-12", "I-22"), _no_compare),
    "blind-ledger": Planted("a ledger is read, added to and written blindly", ("I-20", "I-22"), _blind_ledger),
    "no-limit": Planted("a hard limit refuses nothing", ("I-20",), _no_limit),
    "float-money": Planted("parts of a micro-dollar are rounded away", ("I-22",), _float_money),
    "unpaid-machines": Planted("machines are made and no ledger pays", ("I-22",), _unpaid_machines),
    "paid-back-too-early": Planted("money is given back before the machine is gone", ("I-22",), _paid_back_too_early),
    "removed-with-work": Planted("machines are removed with work on them", ("I-27",), _removed_with_work),
    "stop-before-switch": Planted("old replicas are stopped before new ones are ready", ("I-24",), _stop_before_switch),
    "drain-below-least": Planted("a drain stops replicas that are needed", ("I-24",), _drain_below_least),
    "prepared-for-ever": Planted("what a dead attempt prepared is never given up", ("I-16", "I-32"), _prepared_for_ever),
    "wall-clock-lease": Planted("a lease is measured by the wall clock", ("I-10",), _wall_clock_lease),
    "swallowed-gap": Planted("a gap in a watch is passed over", ("I-06", "I-32"), _swallowed_gap),
    "missed-deletions": Planted("some deletions do not reach the copies", ("I-06", "I-32"), _missed_deletions),
    "started-twice": Planted("an agent starts what runs already", ("I-19",), _started_twice),
    "moved-too-soon": Planted("what a silent node ran is moved as soon as it is missed", ("I-13",), _moved_too_soon),
    "certain-too-soon": Planted("a strict copy is taken to be dead too soon", ("I-13",), _certain_too_soon),
    "contact-when-answered": Planted("a node counts its silence from too late", ("I-13",), _contact_when_answered),
    "twice-the-room": Planted("nodes are taken to be twice as large as they are", ("I-12",), _twice_the_room),
    "no-ready-check": Planted("readiness and cordons are not looked at", ("I-14",), _no_ready_check),
    "no-taint-check": Planted("taints and cordons are not looked at", ("I-14",), _no_taint_check),
    "broken-gang": Planted("a group is bound one by one", ("I-15",), _broken_gang),
    "no-lock": Planted("nodes are bound to without their lock", ("I-17",), _no_lock),
    "lost-write": Planted("a change is acknowledged and not written", ("I-01",), _lost_write),
    "written-and-refused": Planted("a creation is written and refused", ("I-03",), _written_and_refused),
    "stale-reads": Planted("a read is answered from an old copy", ("I-04",), _stale_reads),
    "foreign-node": Planted("a machine that joins writes another's node", ("I-38",), _foreign_node),
    "trickling-status": Planted("money that trickles is written each time", ("I-33",), _trickling_status),
    "given-up-after-conflict": Planted("who loses a race is not looked at again, ever", ("I-32",), _given_up_after_conflict),
    "restless": Planted("replicas that are as they should be are replaced", ("I-25",), _restless),
    "room-below-least": Planted("replicas that are needed make room for others", ("I-28",), _room_below_least),
    "same-again": Planted("who loses a race writes the same again, unread", ("I-35",), _same_again),
    "surplus-kept": Planted("replicas that are too many stay", ("I-32",), _surplus_kept),
}
