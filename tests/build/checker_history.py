"""Synthetic histories of objects, commits and machines for the checkers of invariants."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from build.objects import make_object
from chaos.judge import Evidence, RealChecker, run_of
from lattice.agent.host.runtime_protocol import InstanceId, RunSpec
from lattice.agent.runtimes.fake import RuntimeEvent
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.container import Container
from lattice.kinds.core import Lease
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.checker import Checker
from lattice.sim.world.recording_client import OperationRecord
from lattice.sim.world.run import Run
from lattice.sim.world.store import CommitRecord, ElectionRecord, RejectedWrites
from lattice.store.protocol import Change, Key, Term

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "Heartbeat",
    "message": "",
    "lastTransitionTime": "2026-03-10T09:00:00Z",
}
ENDS = 200.0  # seconds
CLUSTER, OF_CLASS = "east-001", {"lattice.dev/node-class": "small"}


def node(name: str = "n1", cpu: int = 1000, *, is_ready: bool = True, **spec: Any) -> LatticeNode:
    conditions = [{**READY, "status": "True" if is_ready else "False"}]
    status = {"allocatable": {"cpu": cpu}, "conditions": conditions}
    whole = {"spec": {"cluster": CLUSTER, **spec}, "status": status}
    return _history_object(LatticeNode, name, "", whole, uid=f"uid-{name}", labels=OF_CLASS)


def workload(
    name: str = "w1", on: str = "", *, cpu: int = 600, bound_by: str = "", **rest: Any
) -> LatticeWorkload:
    """`on`: bound there, by the reservation `bound_by`; `ready`, `conditions` and others go to its status."""
    status = {
        key: rest.pop(key)
        for key in ("ready", "reservation", "conditions", "lastAction", "allocatedPorts")
        if key in rest
    }
    if on:
        status["binding"] = {"node": on, "uid": f"uid-{on}", "term": 1, "reservation": bound_by}
    metadata = {
        key: rest.pop(key) for key in ("deletionTimestamp", "ownerReferences", "labels") if key in rest
    }
    spec = {"containers": {"main": {"command": ["run"]}}, "requests": {"cpu": f"{cpu}m"}, **rest}
    return _history_object(
        LatticeWorkload, name, "default", {"spec": spec, "status": status}, uid=f"uid-{name}", **metadata
    )


def service(
    name: str = "web",
    least: int = 1,
    generation: int = 1,
    placement: dict[str, Any] | None = None,
    **status: Any,
) -> LatticeService:
    """Placed where all replicas are."""
    spec = {
        "containers": {"main": {"command": ["run"]}},
        "replicas": {"min": least},
        "placement": placement or {},
    }
    placed = {"placements": [{"pool": "east", "cluster": CLUSTER, "node": "small", "replicas": 1}], **status}
    return _history_object(
        LatticeService,
        name,
        "default",
        {"spec": spec, "status": placed},
        uid=f"uid-{name}",
        generation=generation,
    )


def replica(slot: int, on: str = "", *, ready: bool = True, **rest: Any) -> LatticeWorkload:
    owner = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeService", "name": "web", "uid": "uid-web"}
    rest = {
        "cluster": CLUSTER,
        **rest,
        "constraints": {"nodeSelector": OF_CLASS, **rest.get("constraints", {})},
    }
    return workload(
        f"web-{slot}", on, cpu=100, service="web", slot=slot, ready=ready, ownerReferences=[owner], **rest
    )


def ledger(committed: int, spent: int = 0, minute: int = 0, lots: int | None = None) -> LatticeLedger:
    """In March; so many machines of one micro-dollar an hour as it commits, unless `lots` says otherwise."""
    count = committed if lots is None else lots
    machines = {"east-001": [{"nodeClass": "small", "count": count, "micros": 1}]} if count else {}
    status = {"committedMicros": committed, "spentMicros": spent, "machines": machines}
    status |= {"month": "2026-03", "asOf": f"2026-03-10T09:{minute:02}:00.000000Z"}
    spec = {"budget": {"kind": "LatticePool", "name": "east"}, "hard": True}
    return _history_object(LatticeLedger, "east", "", {"spec": spec, "status": status})


def pool(limit: float = 1000.0, **rest: Any) -> LatticePool:
    spec = {
        "provider": {"type": "fake", "region": "east"},
        "budget": {"maxMonthlyCost": limit},
        "nodeClasses": ["small"],
        **rest,
    }
    return _history_object(LatticePool, "east", "", {"spec": spec})


def cluster(count: int) -> LatticeCluster:
    """Of that pool; it wants so many machines."""
    return _history_object(LatticeCluster, CLUSTER, "", {"spec": {"pool": "east", "nodes": {"small": count}}})


def node_class(dollars: float = 0.000001, **rest: Any) -> LatticeNodeClass:
    """One micro-dollar an hour, unless it is said otherwise."""
    return _history_object(
        LatticeNodeClass,
        "small",
        "",
        {"spec": {"providers": {"fake": {}}, "costPerHour": {"fake": dollars}, **rest}},
    )


def lock(holder: str, seconds: int = 10) -> Lease:
    """Of node n1."""
    return _history_object(
        Lease,
        "node.n1",
        "lattice-system",
        {"spec": {"holderIdentity": holder, "leaseDurationSeconds": seconds}},
    )


def a_condition(kind: str, status: str = "False", reason: str = "", message: str = "why") -> dict[str, Any]:
    return {**READY, "type": kind, "status": status, "reason": reason or kind, "message": message}


def _history_object(kind: type[Kind], name: str, namespace: str, body: dict[str, Any], **meta: Any) -> Any:
    return make_object(kind, name, namespace, meta=meta, **body)


def key_of(obj: Kind) -> Key:
    return Key(obj.resource.id, obj.metadata.namespace or "", obj.metadata.name)


@dataclass
class SyntheticHistory:
    """A synthetic run: each method records one event."""

    binding: str = "optimistic"
    kinds: tuple[str, ...] = ()
    history: list[CommitRecord] = field(default_factory=list)
    elections: list[ElectionRecord] = field(default_factory=list)
    told: list[OperationRecord] = field(default_factory=list)
    heard: list[tuple[float, str]] = field(default_factory=list)
    odd_copies: list[tuple[float, str]] = field(default_factory=list)
    standing: list[tuple[str, str, int]] = field(default_factory=list)
    standing_since: float = 0.0
    machines: dict[str, Any] = field(default_factory=dict)
    worst: RejectedWrites = field(default_factory=RejectedWrites)
    trouble: str = ""
    is_led: bool = True

    def __post_init__(self) -> None:
        """A pool and a class are there before anything happens."""
        changes = tuple(
            Change(1, key_of(item), msgspec.json.encode(item), None) for item in (pool(), node_class())
        )
        self.history.append(CommitRecord(1, 0.0, "", "api host", None, 0, None, changes))

    def commit(
        self,
        *objects: Kind,
        gone: tuple[Kind, ...] = (),
        at: float | None = None,
        term: int | None = 1,
        **rest: Any,
    ) -> None:
        """Record a commit of the leader of that term, which has seen all earlier commits; `rest` overrides fields of the record."""
        revision = rest.pop("revision", self.history[-1].revision + 1)
        changes = [Change(revision, key_of(item), msgspec.json.encode(item), None) for item in objects]
        changes += [Change(revision, key_of(item), None, None) for item in gone]
        known = {
            "actor": "s1#1",
            "origin": "controllers",
            "current_term": term or 0,
            "request_id": None,
            "writer_revision": revision - 1,
        } | rest
        held = Term("controllers", term, "s1") if term is not None else None
        when = self.history[-1].at + 1.0 if at is None and self.history else at or 1.0
        self.history.append(
            CommitRecord(revision=revision, at=when, term=held, changes=tuple(changes), **known)
        )

    def ran(
        self, on: str, name: str = "w1", start: float = 10.0, end: float | None = None, **rest: Any
    ) -> None:
        """A copy of that workload was there in truth. `rest`: its `uid`, `command`, `stop_after`, and whether it `fails`."""
        which = InstanceId(rest.get("uid", f"uid-{name}"), "r1", "main")
        container = Container(command=rest.get("command", ("run",)))
        spec = RunSpec(
            id=which, workload=f"default/{name}", container=container, stop_after=rest.get("stop_after")
        )
        ground = self.machine(on).ground
        ground.started_specs.append(spec)
        ground.start_attempts.append((start, spec, True))
        ground.history.append(RuntimeEvent(start, "start", which))
        ground.history += [] if end is None else [RuntimeEvent(end, "stop", which)]
        ground.failures += [(end, which)] if rest.get("fails") else []

    def machine(self, name: str) -> Any:
        ground = SimpleNamespace(
            history=[],
            started_specs=[],
            live_instances=list,
            start_attempts=[],
            failures=[],
            starts_without_assignments=[],
        )
        empty = SimpleNamespace(
            name=name,
            clock=SimpleNamespace(to_sim_time=lambda at: at),
            ground=ground,
            state_file=SimpleNamespace(accepted_terms=[]),
        )
        return self.machines.setdefault(name, empty)

    def runs(self, each: LatticeWorkload) -> None:
        binding = each.status.binding
        assert binding is not None
        self.ran(binding.node, each.metadata.name)

    def simulation_invariants(self) -> set[str]:
        """Of the promises that the checker says were broken."""
        return {item.invariant for item in Checker(cast("Run", self._run())).check()}

    def chaos_invariants(self) -> set[str]:
        """The invariants that the chaos checker reports, given the same history as far as etcd and machines record it."""
        evidence = SimpleNamespace(crowd=SimpleNamespace(told=self.told), ended=ENDS)
        return {
            item.invariant
            for item in RealChecker(
                cast("Run", run_of(cast("Evidence", evidence), self.machines, self.heard, self.history))
            ).check()
        }

    def _run(self) -> SimpleNamespace:
        context = SimpleNamespace(caches=[])
        leader = SimpleNamespace(server=SimpleNamespace(leadership=SimpleNamespace(context=context)))
        client = SimpleNamespace(worst_rejection=self.worst, process=SimpleNamespace(name="s1#1"))
        world = SimpleNamespace(
            store=SimpleNamespace(history=self.history, elections=self.elections),
            operations=self.told,
            heartbeats=self.heard,
            other_messages=[],
            hosts=[],
            machines=self.machines,
            removed_machines=[],
            loop=SimpleNamespace(time=lambda: ENDS, unhandled_errors=[]),
            cloud=SimpleNamespace(
                machine_counts=lambda at: self.standing if at > self.standing_since else [],
                was_lost=lambda node, at: False,
            ),
            leader=lambda: leader if self.is_led else None,
            store_clients=[client],
        )
        swarm = SimpleNamespace(kinds=self.kinds, world_config=SimpleNamespace(binding=self.binding))
        return SimpleNamespace(
            world=world, fault_plan=swarm, error=self.trouble, cache_mismatches=self.odd_copies
        )


Case = Callable[[SyntheticHistory, bool], None]  # the same history with and without what is wrong


def simulation_violations(case: Case) -> list[set[str]]:
    """Numbers of the promises that the checker finds broken: with what is wrong, and without."""
    results = []
    for bad in (True, False):
        past = SyntheticHistory()
        case(past, bad)
        results.append(past.simulation_invariants())
    return results


def chaos_violations(case: Case) -> list[set[str]]:
    """And that the judge of real processes does."""
    results = []
    for bad in (True, False):
        past = SyntheticHistory()
        case(past, bad)
        results.append(past.chaos_invariants())
    return results
