"""Bugs in where something may go, and in how it is bound there."""

from dataclasses import replace
from typing import Any

from lattice.controllers.scheduler import binding_store as bindings
from lattice.kinds.core import Lease
from lattice.placement.plugins.filters import compliance
from lattice.placement.plugins.filters import pool_selector as labels
from lattice.scheduling.cycle import cycle as schedule
from lattice.scheduling.cycle import reservation_record as prepared
from lattice.scheduling.plugins.filters import inter_workload_affinity as workload_anti_affinity
from lattice.scheduling.plugins.filters import ready, taints, topology_spread
from lattice.scheduling.preemption import preemptor as preempt
from lattice.scheduling.table import node_info as facts
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store.protocol import Key


def _reject_nothing(self: Any, ask: Any, rows: Any) -> dict[Any, Any]:
    return {}


def twice_the_room() -> None:
    room = facts.allocatable
    patch_attribute(
        facts, "allocatable", lambda node: {name: 2 * amount for name, amount in room(node).items()}
    )


def no_ready_check() -> None:
    patch_attribute(ready.Ready, "filter", _reject_nothing)


def no_taint_check() -> None:
    patch_attribute(taints.Taints, "filter", _reject_nothing)


def no_label_check() -> None:
    patch_attribute(labels.PoolSelector, "filter", _reject_nothing)


def no_compliance_check() -> None:
    patch_attribute(compliance.Compliance, "filter", _reject_nothing)


def no_distance_check() -> None:
    patch_attribute(workload_anti_affinity.WorkloadAntiAffinity, "filter", _reject_nothing)


def no_spread_check() -> None:
    patch_attribute(topology_spread.TopologySpread, "filter", _reject_nothing)


def broken_gang() -> None:
    patch_attribute(schedule.CompositeScheduler, "missing_members", lambda self, ask, uncounted=0: 0)


def no_lock() -> None:
    async def lock(self: Any, node: str, holder: str, until: float) -> str:
        return holder

    async def unlock(self: Any, node: str, token: str) -> None:
        return None

    patch_attribute(bindings.PersistentBindingStore, "lock", lock)
    patch_attribute(bindings.PersistentBindingStore, "unlock", unlock)


def any_lock() -> None:
    """Somebody else's lock on a node is taken for one's own."""
    taken = bindings.PersistentBindingStore.lock

    async def lock(self: Any, node: str, holder: str, until: float) -> str | None:
        found = await self.context.store.get(Key(Lease.resource.id, bindings.LOCK_NAMESPACE, f"node.{node}"))
        token: str | None = f"{holder} somebody" if found else await taken(self, node, holder, until)
        return token

    patch_attribute(bindings.PersistentBindingStore, "lock", lock)


def prepared_for_ever() -> None:
    """Neither after its time nor when the term of whoever prepared it is over."""
    patch_attribute(prepared.ReservationRecord, "is_expired", lambda self, now: False)
    patch_attribute(bindings.PersistentBindingStore, "_is_from_earlier_term", lambda self, held: False)


def bound_after_its_time() -> None:
    """What is prepared is bound, however late."""
    commit = bindings.PersistentBindingStore.commit_all

    async def late(self: Any, requests: Any) -> Any:
        await self.context.clock.sleep(9.0)
        return await commit(self, requests)

    patch_attribute(prepared.ReservationRecord, "is_expired", lambda self, now: False)
    patch_attribute(bindings.PersistentBindingStore, "commit_all", late)


def unjust_room() -> None:
    """Whoever waits may displace those who are as important."""
    find = preempt.Preemptor.find
    patch_attribute(
        preempt.Preemptor,
        "find",
        lambda self, ask, *rest: find(self, replace(ask, priority=ask.priority + 100), *rest),
    )
