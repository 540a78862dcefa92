"""The answers of …/diagnosis and …/problems: why a service or a workload does not run, and what is wrong now."""

from collections.abc import Mapping
from datetime import datetime

from lattice.diagnosis.blocker import facts_from
from lattice.diagnosis.documents import Document, problems_document, service_document, workload_document
from lattice.diagnosis.problems import FleetObjects, find_problems
from lattice.diagnosis.replica import diagnose_replica
from lattice.diagnosis.service import diagnose_service
from lattice.errors import Malformed, NotFound
from lattice.kinds.automation import AutomationRule
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.server.agents.leader_context import LeaderContext


def diagnosis_document(leader: LeaderContext, query: Mapping[str, str], now: datetime) -> Document:
    """Diagnose the service or the workload that the query names as namespace/name."""
    service_name, workload_name = query.get("service", ""), query.get("workload", "")
    if bool(service_name) == bool(workload_name):
        raise Malformed(
            "the query must name a service or a workload", fix="add service=NAMESPACE/NAME to the address"
        )
    facts, workloads = facts_from(leader.cache, now), leader.cache(LatticeWorkload)
    if workload_name:
        workload = workloads.get(workload_name)
        if workload is None:
            raise NotFound(f"there is no workload {workload_name}", fix="`lattice get workloads` lists them")
        owner = leader.cache(LatticeService).get(service_path(workload)) if workload.spec.service else None
        return workload_document(workload, diagnose_replica(workload, facts, owner))
    service = leader.cache(LatticeService).get(service_name)
    if service is None:
        raise NotFound(f"there is no service {service_name}", fix="`lattice get services -A` lists them")
    replicas = workloads.by_index("service", service_name)
    return service_document(service, diagnose_service(service, replicas, facts), replicas)


def fleet_problems(objects: FleetObjects, now: datetime) -> Document:
    """What is wrong now."""
    return problems_document(find_problems(objects, now))


def fleet_objects(leader: LeaderContext) -> FleetObjects:
    """The objects that can have problems, from the caches of the leader."""
    return FleetObjects(
        services=leader.cache(LatticeService).objects(),
        workloads=leader.cache(LatticeWorkload).objects(),
        nodes=leader.cache(LatticeNode).objects(),
        clusters=leader.cache(LatticeCluster).objects(),
        pools=leader.cache(LatticePool).objects(),
        infrastructures=[
            *leader.cache(CloudInfrastructure).objects(),
            *leader.cache(StaticInfrastructure).objects(),
        ],
        node_classes=leader.cache(LatticeNodeClass).objects(),
        ledgers=leader.cache(LatticeLedger).objects(),
        rules=leader.cache(AutomationRule).objects(),
    )
