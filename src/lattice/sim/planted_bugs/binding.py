"""Planted bugs in the filters, in gang and preemption decisions, and in binding."""

from dataclasses import replace
from typing import Any

from lattice.controllers.scheduler import binding_store
from lattice.kinds import workload
from lattice.kinds.core import Lease
from lattice.kinds.meta.base import SYSTEM_NAMESPACE
from lattice.placement.plugins.filters import compliance, pool_selector
from lattice.scheduling.cycle import cycle
from lattice.scheduling.plugins.filters import inter_workload_affinity, ready, taints, topology_spread
from lattice.scheduling.preemption import preemptor
from lattice.scheduling.table import node_info
from lattice.sim.planted_bugs.patching import patch_attribute
from lattice.store.protocol import Key


def _reject_nothing(self: Any, ask: Any, rows: Any) -> dict[Any, Any]:
    return {}


def twice_the_room() -> None:
    allocatable = node_info.allocatable
    patch_attribute(
        node_info,
        "allocatable",
        lambda node: {name: 2 * amount for name, amount in allocatable(node).items()},
    )


def no_ready_check() -> None:
    patch_attribute(ready.Ready, "filter", _reject_nothing)


def no_taint_check() -> None:
    patch_attribute(taints.Taints, "filter", _reject_nothing)


def no_label_check() -> None:
    patch_attribute(pool_selector.PoolSelector, "filter", _reject_nothing)


def no_compliance_check() -> None:
    patch_attribute(compliance.Compliance, "filter", _reject_nothing)


def no_anti_affinity_check() -> None:
    patch_attribute(inter_workload_affinity.WorkloadAntiAffinity, "filter", _reject_nothing)


def no_spread_check() -> None:
    patch_attribute(topology_spread.TopologySpread, "filter", _reject_nothing)


def broken_gang() -> None:
    patch_attribute(cycle.CompositeScheduler, "missing_members", lambda self, ask, uncounted=0: 0)


def no_lock() -> None:
    async def lock(self: Any, node: str, holder: str, until: float) -> str:
        return holder

    async def unlock(self: Any, node: str, token: str) -> None:
        return None

    patch_attribute(binding_store.PersistentBindingStore, "lock", lock)
    patch_attribute(binding_store.PersistentBindingStore, "unlock", unlock)


def any_lock() -> None:
    """A scheduler treats the lock of another scheduler as its own."""
    lock_node = binding_store.PersistentBindingStore.lock

    async def lock(self: Any, node: str, holder: str, until: float) -> str | None:
        lease = await self.context.store.get(Key(Lease.resource.id, SYSTEM_NAMESPACE, f"node.{node}"))
        token: str | None = f"{holder} somebody" if lease else await lock_node(self, node, holder, until)
        return token

    patch_attribute(binding_store.PersistentBindingStore, "lock", lock)


def prepared_for_ever() -> None:
    """A reservation expires neither by time nor when the term of its scheduler ends."""
    patch_attribute(workload.ReservationRecord, "is_expired", lambda self, now: False)
    patch_attribute(binding_store.PersistentBindingStore, "_is_from_earlier_term", lambda self, record: False)


def bound_after_its_time() -> None:
    """A scheduler binds an expired reservation."""
    commit = binding_store.PersistentBindingStore.commit_all

    async def late(self: Any, requests: Any) -> Any:
        # Longer than RESERVATION_TIMEOUT_S.
        await self.context.clock.sleep(9.0)
        return await commit(self, requests)

    patch_attribute(workload.ReservationRecord, "is_expired", lambda self, now: False)
    patch_attribute(binding_store.PersistentBindingStore, "commit_all", late)


def preempts_equal_priority() -> None:
    """Preemption evicts workloads of equal priority."""
    find = preemptor.Preemptor.find
    patch_attribute(
        preemptor.Preemptor,
        "find",
        lambda self, ask, *arguments: find(self, replace(ask, priority=ask.priority + 100), *arguments),
    )
