"""Build the writes of the scheduler: the workload's status, the node's workload count, and events."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import find_false, merge_conditions, without_condition
from lattice.kinds.meta.timestamps import format_exact_time
from lattice.kinds.node import LatticeNode
from lattice.kinds.qos import qos_of
from lattice.kinds.workload import (
    EVICTED,
    NO_NODE_FITS,
    SCHEDULED_CONDITION,
    WORKLOAD_FINALIZER,
    Binding,
    LatticeWorkload,
    ReservationRecord,
)
from lattice.lifecycle.workload import Action
from lattice.scheduling.cycle.decision_record import DecisionRecord
from lattice.scheduling.cycle.reservation_record import scheduling_status
from lattice.store.protocol import Entry, Put

BOUND_CONDITION = Condition(type=SCHEDULED_CONDITION, status="True", reason="Bound")

_decode_node = msgspec.json.Decoder(LatticeNode).decode
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode


@dataclass(frozen=True, slots=True)
class BindingDetails:
    """Ports, GPUs and decision record of a binding."""

    ports: dict[str, int] = field(default_factory=dict)
    gpus: tuple[int, ...] = ()
    decision_record: DecisionRecord = field(default_factory=dict)


@dataclass(frozen=True)
class BindingRecords:
    """Build the writes of the scheduler for one term; every write expects the revision that was read."""

    context: ControllerContext

    def add_to_count(self, entry: Entry, delta: int) -> Put:
        """Add `delta` to the workload count of the node.

        Every binding thereby moves the revision of its node, so that concurrent bindings to one node conflict
        (I-12).
        """
        status = self._node(entry).status
        return with_status(
            entry, msgspec.structs.replace(status, workloads=max(0, (status.workloads or 0) + delta))
        )

    def set_count(self, entry: Entry, count: int) -> Put | None:
        """Set the workload count of the node; None if the count is the same."""
        status = self._node(entry).status
        if status.workloads == count:
            return None
        return with_status(entry, msgspec.structs.replace(status, workloads=count))

    def bind(self, entry: Entry, binding: Binding, details: BindingDetails) -> list[Put]:
        """Bind the workload to the node, with an event; without details, ports and GPUs are those of the
        reservation."""
        cache, path, now = self.context.cache(LatticeWorkload), entry.key.path, self.context.timestamp
        cached_entry, workload = cache.entry(path), cache.get(path)
        # Decoding is expensive: take the object of the cache if the cache has this revision.
        if workload is None or cached_entry is None or cached_entry.revision != entry.revision:
            workload = _decode_workload(entry.value)
        status = scheduling_status(workload)
        status = msgspec.structs.replace(
            status,
            binding=binding,
            reservation=None,
            qos_class=qos_of(workload.spec).name,
            allocated_ports=details.ports or status.allocated_ports,
            allocated_gpus=details.gpus or status.allocated_gpus,
            last_action=Action.ASSIGN.value,
            last_action_at=now,
            decision=details.decision_record or status.decision,
            # An eviction concerned the previous node, not the new binding.
            conditions=merge_conditions(
                without_condition(workload.status.conditions, EVICTED), [BOUND_CONDITION], now
            ),
        )
        # The finalizer is added in the commit of the binding; otherwise the object could be deleted while an
        # agent runs the workload (I-13).
        put = with_status(
            entry, status, None if WORKLOAD_FINALIZER in workload.metadata.finalizers else _add_finalizer
        )
        return [put, self._event(workload, "WorkloadScheduled", f"Bound to node {binding.node}")]

    def bind_reserved(self, entry: Entry, reservation: ReservationRecord) -> list[Put]:
        """Bind a reserved workload to the node of its reservation.

        If a gang is bound in several commits, its bindings share the id of the gang's binding attempt.
        """
        binding = Binding(
            node=reservation.node,
            uid=reservation.uid,
            term=self.context.term.number,
            reservation=reservation.id,
            gang=reservation.gang,
        )
        return self.bind(entry, binding, BindingDetails())

    def reserve(self, entry: Entry, reservation: ReservationRecord, details: BindingDetails) -> Put:
        """Reserve resources and ports of a node for a workload that is not bound yet."""
        status = scheduling_status(_decode_workload(entry.value))
        changed = msgspec.structs.replace(
            status,
            reservation=reservation,
            allocated_ports=details.ports or status.allocated_ports,
            allocated_gpus=details.gpus or status.allocated_gpus,
            decision=details.decision_record,
        )
        return with_status(entry, changed)

    def adopt(self, entry: Entry, reservation: ReservationRecord) -> Put:
        """Replace the reservation of a workload by `reservation`, which names the binding attempt of the
        gang."""
        status = scheduling_status(_decode_workload(entry.value))
        return with_status(entry, msgspec.structs.replace(status, reservation=reservation))

    def cancel_reservation(self, entry: Entry) -> Put:
        """Remove the reservation from a workload, as if resources had never been reserved for it; callers
        never pass a bound workload."""
        workload = _decode_workload(entry.value)
        status = msgspec.structs.replace(
            scheduling_status(workload),
            binding=None,
            reservation=None,
            allocated_ports={},
            allocated_gpus=(),
            conditions=without_condition(workload.status.conditions, SCHEDULED_CONDITION),
            last_action="",
            last_action_at=None,
        )
        return with_status(entry, status)

    def mark_unschedulable(
        self, entry: Entry, message: str, kinds: Sequence[str], decision_record: DecisionRecord
    ) -> list[Put]:
        """Write why no node accepts the workload; empty if the workload already states the same reason
        kinds."""
        workload, now = _decode_workload(entry.value), self.context.timestamp
        status, decision = scheduling_status(workload), {**decision_record, "kinds": list(kinds)}
        previous = find_false(status.conditions, SCHEDULED_CONDITION)
        # A waiting workload is decided many times: only a change of the reason kinds is written (I-33).
        if previous and status.decision.get("kinds") == decision["kinds"]:
            return []
        condition = Condition(type=SCHEDULED_CONDITION, status="False", reason=NO_NODE_FITS, message=message)
        changed = msgspec.structs.replace(
            status, decision=decision, conditions=merge_conditions(status.conditions, [condition], now)
        )
        return [with_status(entry, changed)]

    def unschedulable_event(self, workload: LatticeWorkload) -> Put | None:
        """The event about a workload that no node accepts; None if a node was found, or not tried yet."""
        unscheduled = find_false(workload.status.conditions, SCHEDULED_CONDITION)
        if unscheduled is None or workload.status.binding is not None:
            return None
        return self._event(workload, "FailedScheduling", unscheduled.message, warning=True)

    def binding_failed_event(self, workload: LatticeWorkload, message: str, count: int) -> Put:
        """The event about a failed binding; `count` is the number of failures since the last event."""
        return self._event(
            workload, "BindingFailed", message if count == 1 else f"{message} ({count} times)", warning=True
        )

    def mark_evicted(self, entry: Entry, message: str) -> list[Put]:
        """Mark the workload as preempted, with an event; the workload controller stops the workload."""
        workload, now = _decode_workload(entry.value), self.context.timestamp
        condition = Condition(type=EVICTED, status="True", reason="Preempted", message=message)
        status = msgspec.structs.replace(
            workload.status, conditions=merge_conditions(workload.status.conditions, [condition], now)
        )
        return [with_status(entry, status), self._event(workload, "Preempted", message, warning=True)]

    def wall_time(self, seconds: float) -> str:
        """Convert a monotonic time to a wall-clock timestamp, which other processes can compare."""
        clock = self.context.clock
        return format_exact_time(clock.now() + timedelta(seconds=seconds - clock.monotonic()))

    def _node(self, entry: Entry) -> LatticeNode:
        cache, path = self.context.cache(LatticeNode), entry.key.path
        cached_entry, node = cache.entry(path), cache.get(path)
        if node is not None and cached_entry is not None and cached_entry.revision == entry.revision:
            return node
        return _decode_node(entry.value)

    def _event(self, workload: LatticeWorkload, reason: str, message: str, *, warning: bool = False) -> Put:
        return self.context.recorder("scheduling").event(workload, reason, message, warning=warning)


def _add_finalizer(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata | {"finalizers": [*metadata.get("finalizers", ()), WORKLOAD_FINALIZER]}
