"""Bugs in where something may go, and in how it is bound there."""

from dataclasses import replace
from typing import Any

from lattice.controllers.scheduler import binding_store as bindings
from lattice.kinds.core import Lease
from lattice.placement.plugins.filters import compliance, pool_selector as labels
from lattice.scheduling.table import node_info as facts
from lattice.scheduling.preemption import preemptor as preempt
from lattice.scheduling.cycle import two_phase as prepared, cycle as schedule
from lattice.scheduling.plugins.filters import ready, taints, topology_spread, workload_anti_affinity
from lattice.sim.planted_bugs.patching import swap
from lattice.store.protocol import Key


def _nothing(self: Any, ask: Any, rows: Any) -> dict[Any, Any]:
    return {}


def twice_the_room() -> None:
    room = facts.allocatable
    swap(facts, "allocatable", lambda node: {name: 2 * amount for name, amount in room(node).items()})


def no_ready_check() -> None:
    swap(ready.Ready, "filter", _nothing)


def no_taint_check() -> None:
    swap(taints.Taints, "filter", _nothing)


def no_label_check() -> None:
    swap(labels.Labels, "filter", _nothing)


def no_compliance_check() -> None:
    swap(compliance.Compliance, "filter", _nothing)


def no_distance_check() -> None:
    swap(workload_anti_affinity.WorkloadAntiAffinity, "filter", _nothing)


def no_spread_check() -> None:
    swap(topology_spread.TopologySpread, "filter", _nothing)


def broken_gang() -> None:
    swap(schedule.CompositeScheduler, "still_needed", lambda self, ask, of_which=0: 0)


def no_lock() -> None:
    async def lock(self: Any, node: str, holder: str, until: float) -> str:
        return holder

    async def unlock(self: Any, node: str, token: str) -> None:
        return None

    swap(bindings.StoreLedger, "lock", lock)
    swap(bindings.StoreLedger, "unlock", unlock)


def any_lock() -> None:
    """Somebody else's lock on a node is taken for one's own."""
    taken = bindings.StoreLedger.lock

    async def lock(self: Any, node: str, holder: str, until: float) -> str | None:
        found = await self.office.store.get(Key(Lease.resource.id, bindings.LOCKS, f"node.{node}"))
        token: str | None = f"{holder} somebody" if found else await taken(self, node, holder, until)
        return token

    swap(bindings.StoreLedger, "lock", lock)


def prepared_for_ever() -> None:
    """Neither after its time nor when the term of whoever prepared it is over."""
    swap(prepared.Prepared, "is_over", lambda self, now: False)
    swap(bindings.StoreLedger, "_is_of_the_past", lambda self, held: False)


def bound_after_its_time() -> None:
    """What is prepared is bound, however late."""
    commit = bindings.StoreLedger.commit_all

    async def late(self: Any, requests: Any) -> Any:
        await self.office.clock.sleep(9.0)
        return await commit(self, requests)

    swap(prepared.Prepared, "is_over", lambda self, now: False)
    swap(bindings.StoreLedger, "commit_all", late)


def unjust_room() -> None:
    """Whoever waits may displace those who are as important."""
    find = preempt.Preemptor.find
    swap(
        preempt.Preemptor,
        "find",
        lambda self, ask, *rest: find(self, replace(ask, priority=ask.priority + 100), *rest),
    )
