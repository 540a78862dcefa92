"""One module per API kind; `KINDS` is the list of all.

Imported by: agent agent.host agent.runtimes app cli.client cli.commands cli.fleet cli.output
controllers.automation controllers.garbage controllers.nodes controllers.runtime controllers.scheduler
controllers.services diagnosis lifecycle placement.affinity placement.explain placement.feed placement.fit
placement.greedy placement.inputs placement.model placement.plan placement.plugins.filters
placement.status presence providers scheduling.cycle scheduling.offline scheduling.plugins.filters
scheduling.plugins.scores scheduling.preemption scheduling.table server server.agents server.discovery
server.event_versions server.fleet_queries server.grpc server.live server.resources server.ui_backend sim
sim.invariants sim.planted_bugs sim.scenarios sim.world.
May import: errors kinds.meta.
May touch: values only: no clock, randomness, files, sockets, threads or logs.
"""

from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.automation import AutomationRule
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import ConfigMap, Event, Lease, Namespace, Secret, Service
from lattice.kinds.event_v1 import EventV1
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

LATTICE_KINDS: tuple[type[Kind], ...] = (
    LatticePool,
    LatticeNodeClass,
    LatticePlacementPolicy,
    CloudInfrastructure,
    StaticInfrastructure,
    LatticeService,
    LatticeCluster,
    LatticeNode,
    LatticeWorkload,
    LatticeAgreement,
    LatticeLedger,
    AutomationRule,
)
CORE_KINDS: tuple[type[Kind], ...] = (Namespace, Secret, ConfigMap, Event, Lease, Service)
KINDS: tuple[type[Kind], ...] = LATTICE_KINDS + CORE_KINDS
# With the kinds that are another form of a stored kind.
SERVED_KINDS: tuple[type[Kind], ...] = (*KINDS, EventV1)
