"""What is written when a workload gets a node, is to make room, or finds none: its own record, the node's count, and an event."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from lattice.controllers.runtime.event_recorder import Teller
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import conditioned, with_status
from lattice.kinds.meta.base import Condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import Binding, LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.decision_record import Grounds
from lattice.lifecycle.workload import Action
from lattice.scheduling.cycle.two_phase import GANG, PREPARED, RESERVATION, Prepared
from lattice.scheduling.cycle.scheduler_cache import LEAVING
from lattice.store.protocol import Entry, Put

FINALIZER = "lattice.dev/workload"  # a workload that has a node is not gone before its node says so
SCHEDULED = "Scheduled"
NO_NODE = "NoNodeFits"
BOUND = Condition(type=SCHEDULED, status="True", reason="Bound")

_node = msgspec.json.Decoder(LatticeNode).decode
_workload = msgspec.json.Decoder(LatticeWorkload).decode


@dataclass(frozen=True, slots=True)
class Draft:
    """What a binding says besides who goes where."""

    ports: dict[str, int] = field(default_factory=dict)
    grounds: Grounds = field(default_factory=dict)


@dataclass(frozen=True)
class Deeds:
    """Makes the writes of the scheduling of one term. Whatever it makes expects the record to be as it was read."""

    office: Office

    @cached_property
    def _teller(self) -> Teller:
        return self.office.teller("scheduling")

    def counted(self, entry: Entry, more: int) -> Put:
        """So many more, or fewer, are bound to the node: with each binding its revision moves, so that no rival overlooks another."""
        status = self._node(entry).status
        return with_status(
            entry, msgspec.structs.replace(status, workloads=max(0, (status.workloads or 0) + more))
        )

    def recounted(self, entry: Entry, count: int) -> Put | None:
        """So many are bound to the node; None if it says so."""
        status = self._node(entry).status
        return (
            None
            if status.workloads == count
            else with_status(entry, msgspec.structs.replace(status, workloads=count))
        )

    def bound(self, entry: Entry, to: Binding, request: BindRequest, draft: Draft) -> list[Put]:
        """It has that node, and an event says so."""
        workload, now = self._workload(entry), self.office.now
        status = msgspec.structs.replace(
            workload.status,
            binding=to,
            allocated_ports=draft.ports or workload.status.allocated_ports,
            last_action=Action.ASSIGN.value,
            last_action_at=now,
            decision={**(draft.grounds or _without(workload, PREPARED)), RESERVATION: request.reservation},
            conditions=conditioned(_but(workload, LEAVING), [BOUND], now),
        )
        put = with_status(entry, status, None if FINALIZER in workload.metadata.finalizers else _held)
        return [put, self._event(workload, "WorkloadScheduled", f"bound to node {to.node}")]

    def together(self, entry: Entry, to: Binding, held: Prepared) -> list[Put]:
        """As `bound`, of what was prepared; the others that are bound by the same attempt are known by its name."""
        workload = _workload(entry.value)
        grounds = _without(workload, PREPARED) | ({GANG: held.gang} if held.gang else {})
        request = BindRequest(entry.key.path, held.node, held.reservation, (), 0.0)
        return self.bound(entry, to, request, Draft(grounds=grounds))

    def prepared(self, entry: Entry, held: Prepared, draft: Draft) -> Put:
        """Its room and its ports are taken, and it is not bound yet."""
        status = _workload(entry.value).status
        decision = {**draft.grounds, PREPARED: msgspec.to_builtins(held)}
        ports = draft.ports or status.allocated_ports
        changed = msgspec.structs.replace(status, decision=decision, allocated_ports=ports)
        return with_status(entry, changed)

    def adopted(self, entry: Entry, held: Prepared) -> Put:
        """What is prepared belongs to an attempt of many."""
        status = _workload(entry.value).status
        return with_status(
            entry,
            msgspec.structs.replace(
                status, decision={**status.decision, PREPARED: msgspec.to_builtins(held)}
            ),
        )

    def given_up(self, entry: Entry) -> Put:
        """Not prepared any more: as if it never was. What is bound is never given up."""
        workload = _workload(entry.value)
        decision = _without(workload, PREPARED, RESERVATION, GANG)
        conditions = _but(workload, SCHEDULED)
        status = msgspec.structs.replace(
            workload.status, binding=None, allocated_ports={}, decision=decision, conditions=conditions
        )
        return with_status(entry, msgspec.structs.replace(status, last_action="", last_action_at=None))

    def unplaced(self, entry: Entry, why: str, kinds: Sequence[str], grounds: Grounds) -> list[Put]:
        """It finds no node, for these kinds of reasons; nothing if that is told already."""
        workload, now = _workload(entry.value), self.office.now
        status, decision = workload.status, {**grounds, "kinds": list(kinds)}
        known = {each.type: each for each in status.conditions}.get(SCHEDULED)
        if known and known.status == "False" and status.decision.get("kinds") == decision["kinds"]:
            return []
        found = Condition(type=SCHEDULED, status="False", reason=NO_NODE, message=why)
        changed = msgspec.structs.replace(
            status, decision=decision, conditions=conditioned(status.conditions, [found], now)
        )
        return [with_status(entry, changed), self._event(workload, "FailedScheduling", why, warning=True)]

    def binding_failed(self, workload: LatticeWorkload, why: str, count: int) -> Put:
        """It was to be bound, and is not; `count`: how often since that was told last."""
        return self._event(
            workload, "BindingFailed", why if count == 1 else f"{why} ({count} times)", warning=True
        )

    def leaving(self, entry: Entry, why: str) -> list[Put]:
        """It is to stop and make room; whoever runs workloads sees to it."""
        workload, now = _workload(entry.value), self.office.now
        found = Condition(type=LEAVING, status="True", reason="Preempted", message=why)
        status = msgspec.structs.replace(
            workload.status, conditions=conditioned(workload.status.conditions, [found], now)
        )
        return [with_status(entry, status), self._event(workload, "Preempted", why, warning=True)]

    def until(self, seconds: float) -> str:
        """Wall time of a monotonic one: other processes have other monotonic clocks."""
        clock = self.office.clock
        return (clock.now() + timedelta(seconds=seconds - clock.monotonic())).isoformat()

    def _workload(self, entry: Entry) -> LatticeWorkload:
        """As copied, if the copy has this very revision: it need not be read twice."""
        copy, path = self.office.copy(LatticeWorkload), entry.key.path
        known, found = copy.entry(path), copy.get(path)
        return (
            found
            if found is not None and known is not None and known.revision == entry.revision
            else _workload(entry.value)
        )

    def _node(self, entry: Entry) -> LatticeNode:
        copy, path = self.office.copy(LatticeNode), entry.key.path
        known, found = copy.entry(path), copy.get(path)
        return (
            found
            if found is not None and known is not None and known.revision == entry.revision
            else _node(entry.value)
        )

    def _event(self, about: LatticeWorkload, reason: str, message: str, *, warning: bool = False) -> Put:
        return self._teller.event(about, reason, message, warning=warning)


def _held(metadata: dict[str, Any]) -> dict[str, Any]:
    return metadata | {"finalizers": [*metadata.get("finalizers", ()), FINALIZER]}


def _without(workload: LatticeWorkload, *names: str) -> Grounds:
    return {name: value for name, value in workload.status.decision.items() if name not in names}


def _but(workload: LatticeWorkload, kind: str) -> tuple[Condition, ...]:
    return tuple(each for each in workload.status.conditions if each.type != kind)
