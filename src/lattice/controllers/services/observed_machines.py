"""Record what real machines offer: on their class, or on their data center if its machines have no class."""

from collections.abc import Iterable, Iterator

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.infrastructure import StaticInfrastructure
from lattice.kinds.meta.base import Condition, path_of
from lattice.kinds.meta.conditions import find_condition, merge_conditions
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import MACHINES_DIFFER_CONDITION, LatticeNodeClass, ObservedMachine
from lattice.placement.inputs.observed_machines import (
    Difference,
    counted_reports,
    differences,
    machines_differ_condition,
    update_record,
)
from lattice.placement.model.offer import STATIC_MACHINE_TYPE, promised_machine
from lattice.placement.model.supply import promised_class, stated_static_type
from lattice.store.protocol import Write

MachineOwner = LatticeNodeClass | StaticInfrastructure


class ObservedMachineRecorder:
    """Keeps the records of real machines and the condition MachinesDiffer in step with the nodes."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context
        self._nodes, self._classes = context.cache(LatticeNode), context.cache(LatticeNodeClass)
        self._statics = context.cache(StaticInfrastructure)
        self._recorder = context.recorder("services")
        # The revisions of the caches at the last run: without a change, no record can change.
        self._seen: tuple[int, ...] = ()

    async def record(self) -> None:
        """Commit every changed record, one commit for each class; return when the caches hold the records."""
        revisions = (self._nodes.revision, self._classes.revision, self._statics.revision)
        if revisions == self._seen:
            return
        nodes_by_class: dict[str, list[LatticeNode]] = {}
        for node in self._nodes.objects():
            if node.status.allocatable and not node.metadata.deletion_timestamp:
                nodes_by_class.setdefault(node.spec.node_class, []).append(node)
        revision = 0
        for node_class in sorted(self._classes.objects(), key=lambda owner: owner.metadata.name):
            nodes = nodes_by_class.get(node_class.metadata.name, [])
            if nodes or node_class.status.observed:
                revision = max(revision, await self._update(node_class, nodes))
        for static in sorted(self._statics.objects(), key=lambda owner: owner.metadata.name):
            machines = nodes_by_class.get(STATIC_MACHINE_TYPE, [])
            nodes = [node for node in machines if node.spec.pool == static.metadata.name]
            if nodes or static.status.observed:
                revision = max(revision, await self._update(static, nodes))
        if revision:
            await self._classes.wait_for(revision)
            await self._statics.wait_for(revision)
        self._seen = revisions

    async def _update(self, owner: MachineOwner, nodes: Iterable[LatticeNode]) -> int:
        """Commit the records of one class or data center; return the revision of the commit, 0 without
        one."""
        generation = owner.metadata.generation
        reports = counted_reports(nodes, generation)
        previous = {record.offer: record for record in owner.status.observed}
        records: list[ObservedMachine] = []
        differing_by_offer: dict[str, list[Difference]] = {}
        for offer in sorted({*reports, *previous}):
            nodes_of_offer = reports.get(offer, [])
            provider = nodes_of_offer[0].spec.provider if nodes_of_offer else previous[offer].provider
            # What the class states on the provider, or what the data center states.
            if isinstance(owner, LatticeNodeClass):
                stated = promised_class(owner, provider)
            else:
                stated = promised_machine(stated_static_type(owner))
            record = update_record(
                previous.get(offer), stated, nodes_of_offer, generation, self._context.timestamp
            )
            if record is None:
                continue
            records.append(record)
            if differing := differences(stated, record):
                differing_by_offer[offer] = differing
        owners = self._classes if isinstance(owner, LatticeNodeClass) else self._statics
        entry = owners.entry(path_of(owner))
        if entry is None:
            return 0
        conditions = owner.status.conditions
        condition = machines_differ_condition(differing_by_offer)
        previous_condition = find_condition(conditions, MACHINES_DIFFER_CONDITION)
        if previous_condition is not None or condition.status == "True":
            conditions = merge_conditions(conditions, [condition], self._context.timestamp)
        status = msgspec.structs.replace(owner.status, observed=tuple(records), conditions=conditions)
        if status == owner.status:
            return 0
        events = self._events(owner, previous_condition, condition)
        return await self._context.commit([with_status(entry, status), *events])

    def _events(
        self, owner: MachineOwner, previous: Condition | None, condition: Condition
    ) -> Iterator[Write]:
        if previous is None or (previous.status, previous.message) != (condition.status, condition.message):
            if condition.status == "True":
                yield self._recorder.event(owner, "MachinesDiffer", condition.message, warning=True)
            elif previous is not None and previous.status == "True":
                yield self._recorder.event(owner, "MachinesAsStated", "The machines have what is stated")
