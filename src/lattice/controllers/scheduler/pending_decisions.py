"""Decision records of workloads that are decided and not bound yet, and the details that a binding stores."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.scheduler.binding_records import BindingDetails
from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision
from lattice.engine.plugin import Profile
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.cycle.binder import BindRequest
from lattice.scheduling.cycle.decision_record import DecisionRecord, chosen_records
from lattice.scheduling.cycle.profile import ProfileSpec
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.port_allocator import allocated_ports
from lattice.scheduling.table.workload_ask import WorkloadAsk


@dataclass
class PendingDecisions:
    """The decision records by workload, from the decision until the binding or the next decision."""

    context: ControllerContext
    table: NodeTable
    profiles: Mapping[Profile, ProfileSpec]
    _records: dict[str, DecisionRecord] = field(default_factory=dict)

    def record(self, asks: Sequence[WorkloadAsk], result: Decision | BatchResult) -> None:
        """Record why the workloads got their nodes, as of the moment of the decision."""
        records = chosen_records(
            result, self.profiles[result.profile], self.context.cache(LatticeNode).revision
        )
        self._records.update(zip((ask.name for ask in asks), records, strict=False))

    def forget(self, workloads: Iterable[str]) -> None:
        for name in workloads:
            self._records.pop(name, None)

    def details_for(self, request: BindRequest) -> BindingDetails:
        """Ports and GPUs that the table chose with the reservation, and the decision record."""
        placement = self.table.placements.get(request.workload)
        workload = self.context.cache(LatticeWorkload).get(request.workload)
        record = self._records.get(request.workload, {})
        # A node outside the record's best nodes was chosen for a gang or by a preemption: the record does not
        # explain that choice.
        if request.node not in record.get("best", (request.node,)):
            record = {}
        if placement is None or workload is None:
            return BindingDetails(decision_record=record)
        ports = allocated_ports(workload.spec.containers, placement.ports)
        return BindingDetails(ports, placement.gpus, record)
