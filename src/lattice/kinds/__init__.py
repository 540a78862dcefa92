"""What people write and the store holds; one file per kind; KINDS is the one list of them."""

from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.automation import AutomationRule
from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import ConfigMap, Event, Lease, Namespace, Secret, Service
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
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
