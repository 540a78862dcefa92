"""What is written when a workload gets a node, is to make room, or finds none: its own record, the node's count, and an event."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.event_recorder import EventRecorder
from lattice.controllers.runtime.object_writes import merge_conditions, with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import EVICTED, Binding, LatticeWorkload
from lattice.lifecycle.workload import Action
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.decision_record import DecisionRecord
from lattice.scheduling.cycle.reservation_record import (
    GANG_KEY,
    RESERVATION_KEY,
    RESERVATION_RECORD_KEY,
    ReservationRecord,
)
from lattice.store.protocol import Entry, Put

FINALIZER = "lattice.dev/workload"  # a workload that has a node is not gone before its node says so
SCHEDULED = "Scheduled"
NO_NODE = "NoNodeFits"
BOUND = Condition(type=SCHEDULED, status="True", reason="Bound")

_decode_node = msgspec.json.Decoder(LatticeNode).decode
_decode_workload = msgspec.json.Decoder(LatticeWorkload).decode


@dataclass(frozen=True, slots=True)
class BindingDetails:
    """What a binding says besides who goes where."""

    ports: dict[str, int] = field(default_factory=dict)
    decision_record: DecisionRecord = field(default_factory=dict)


@dataclass(frozen=True)
class BindingRecords:
    """Makes the writes of the scheduling of one term. Whatever it makes expects the record to be as it was read."""

    context: ControllerContext

    @cached_property
    def _recorder(self) -> EventRecorder:
        return self.context.recorder("scheduling")

    def add_to_count(self, entry: Entry, more: int) -> Put:
        """So many more, or fewer, are bound to the node: with each binding its revision moves, so that no rival overlooks another."""
        status = self._node(entry).status
        return with_status(
            entry, msgspec.structs.replace(status, workloads=max(0, (status.workloads or 0) + more))
        )

    def set_count(self, entry: Entry, count: int) -> Put | None:
        """So many are bound to the node; None if it says so."""
        status = self._node(entry).status
        return (
            None
            if status.workloads == count
            else with_status(entry, msgspec.structs.replace(status, workloads=count))
        )

    def bind(self, entry: Entry, to: Binding, request: BindRequest, draft: BindingDetails) -> list[Put]:
        """It has that node, and an event says so."""
        workload, now = self._workload(entry), self.context.timestamp
        status = msgspec.structs.replace(
            workload.status,
            binding=to,
            allocated_ports=draft.ports or workload.status.allocated_ports,
            last_action=Action.ASSIGN.value,
            last_action_at=now,
            decision={
                **(draft.decision_record or _decision_without(workload, RESERVATION_RECORD_KEY)),
                RESERVATION_KEY: request.reservation,
            },
            conditions=merge_conditions(_conditions_without(workload, EVICTED), [BOUND], now),
        )
        put = with_status(
            entry, status, None if FINALIZER in workload.metadata.finalizers else _add_finalizer
        )
        return [put, self._event(workload, "WorkloadScheduled", f"bound to node {to.node}")]

    def bind_reserved(self, entry: Entry, to: Binding, held: ReservationRecord) -> list[Put]:
        """As `bound`, of what was prepared; the others that are bound by the same attempt are known by its name."""
        workload = _decode_workload(entry.value)
        grounds = _decision_without(workload, RESERVATION_RECORD_KEY) | (
            {GANG_KEY: held.gang} if held.gang else {}
        )
        request = BindRequest(entry.key.path, held.node, held.reservation, (), 0.0)
        return self.bind(entry, to, request, BindingDetails(decision_record=grounds))

    def reserve(self, entry: Entry, held: ReservationRecord, draft: BindingDetails) -> Put:
        """Its room and its ports are taken, and it is not bound yet."""
        status = _decode_workload(entry.value).status
        decision = {**draft.decision_record, RESERVATION_RECORD_KEY: msgspec.to_builtins(held)}
        ports = draft.ports or status.allocated_ports
        changed = msgspec.structs.replace(status, decision=decision, allocated_ports=ports)
        return with_status(entry, changed)

    def adopt(self, entry: Entry, held: ReservationRecord) -> Put:
        """What is prepared belongs to an attempt of many."""
        status = _decode_workload(entry.value).status
        return with_status(
            entry,
            msgspec.structs.replace(
                status, decision={**status.decision, RESERVATION_RECORD_KEY: msgspec.to_builtins(held)}
            ),
        )

    def cancel_reservation(self, entry: Entry) -> Put:
        """Not prepared any more: as if it never was. What is bound is never given up."""
        workload = _decode_workload(entry.value)
        decision = _decision_without(workload, RESERVATION_RECORD_KEY, RESERVATION_KEY, GANG_KEY)
        conditions = _conditions_without(workload, SCHEDULED)
        status = msgspec.structs.replace(
            workload.status, binding=None, allocated_ports={}, decision=decision, conditions=conditions
        )
        return with_status(entry, msgspec.structs.replace(status, last_action="", last_action_at=None))

    def mark_unschedulable(
        self, entry: Entry, why: str, kinds: Sequence[str], grounds: DecisionRecord
    ) -> list[Put]:
        """It finds no node, for these kinds of reasons; nothing if that is told already."""
        workload, now = _decode_workload(entry.value), self.context.timestamp
        status, decision = workload.status, {**grounds, "kinds": list(kinds)}
        known = {each.type: each for each in status.conditions}.get(SCHEDULED)
        if known and known.status == "False" and status.decision.get("kinds") == decision["kinds"]:
            return []
        found = Condition(type=SCHEDULED, status="False", reason=NO_NODE, message=why)
        changed = msgspec.structs.replace(
            status, decision=decision, conditions=merge_conditions(status.conditions, [found], now)
        )
        return [with_status(entry, changed), self._event(workload, "FailedScheduling", why, warning=True)]

    def binding_failed_event(self, workload: LatticeWorkload, why: str, count: int) -> Put:
        """It was to be bound, and is not; `count`: how often since that was told last."""
        return self._event(
            workload, "BindingFailed", why if count == 1 else f"{why} ({count} times)", warning=True
        )

    def mark_evicted(self, entry: Entry, why: str) -> list[Put]:
        """It is to stop and make room; whoever runs workloads sees to it."""
        workload, now = _decode_workload(entry.value), self.context.timestamp
        found = Condition(type=EVICTED, status="True", reason="Preempted", message=why)
        status = msgspec.structs.replace(
            workload.status, conditions=merge_conditions(workload.status.conditions, [found], now)
        )
        return [with_status(entry, status), self._event(workload, "Preempted", why, warning=True)]

    def wall_time(self, seconds: float) -> str:
        """Wall time of a monotonic one: other processes have other monotonic clocks."""
        clock = self.context.clock
        return (clock.now() + timedelta(seconds=seconds - clock.monotonic())).isoformat()

    def _workload(self, entry: Entry) -> LatticeWorkload:
        """As copied, if the copy has this very revision: it need not be read twice."""
        copy, path = self.context.cache(LatticeWorkload), entry.key.path
        known, found = copy.entry(path), copy.get(path)
        return (
            found
            if found is not None and known is not None and known.revision == entry.revision
            else _decode_workload(entry.value)
        )

    def _node(self, entry: Entry) -> LatticeNode:
        copy, path = self.context.cache(LatticeNode), entry.key.path
        known, found = copy.entry(path), copy.get(path)
        return (
            found
            if found is not None and known is not None and known.revision == entry.revision
            else _decode_node(entry.value)
        )

    def _event(self, about: LatticeWorkload, reason: str, message: str, *, warning: bool = False) -> Put:
        return self._recorder.event(about, reason, message, warning=warning)


def _add_finalizer(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata | {"finalizers": [*metadata.get("finalizers", ()), FINALIZER]}


def _decision_without(workload: LatticeWorkload, *names: str) -> DecisionRecord:
    return {name: value for name, value in workload.status.decision.items() if name not in names}


def _conditions_without(workload: LatticeWorkload, kind: str) -> tuple[Condition, ...]:
    return tuple(each for each in workload.status.conditions if each.type != kind)
