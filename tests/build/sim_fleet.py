"""The whole control plane in virtual time: real servers, agents and API, machines that may differ from their
class, and the figures of the fleet."""

import functools
import traceback
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.meta.conditions import find_condition
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.providers.protocol import MachineSpec
from lattice.sim.scenarios.scenario_world import ScenarioWorld
from lattice.sim.seed_runner import run_in_subprocess
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.user_actions import node_class_body, pool_body, service_body


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run the test in a process of its own: the tasks of a simulated world cannot be closed."""

    @functools.wraps(test)
    def run(*arguments: Any, **keywords: Any) -> None:
        def body() -> str:
            try:
                test(*arguments, **keywords)
            except BaseException:  # noqa: BLE001 - the parent process raises it
                return traceback.format_exc()
            return ""

        if problem := run_in_subprocess(body, str):
            pytest.fail(problem, pytrace=False)

    return run


class SimFleet(ScenarioWorld):
    """A started world of one server, whose users apply whole specs; `shape` changes every new machine before
    its agent starts."""

    def __init__(self, shape: Callable[[SimMachine], None] = lambda machine: None, servers: int = 1) -> None:
        super().__init__()
        configure = self.world.configure_machine

        def configured(machine: SimMachine) -> None:
            configure(machine)
            shape(machine)

        self.world.configure_machine = configured
        # The machines that the provider made, in order.
        self.made: list[str] = []
        on_created = self.world.cloud.provider.on_created

        def note(spec: MachineSpec) -> None:
            self.made.append(spec.node)
            on_created(spec)

        self.world.cloud.provider.on_created = note
        self.begin(servers=servers)

    def declare(self, kind: str, name: str, spec: Any) -> None:
        problems = self._request(
            self.client.apply, kind, name, {"spec": spec}, "default" if kind == "latticeservices" else ""
        )
        assert not problems, problems

    def add_class(
        self,
        name: str,
        *,
        cores: float = 1,
        memory: float = 2,
        price: str = "0.05",
        gpu: int = 0,
        **more: Any,
    ) -> None:
        spec = node_class_body(cores, memory, price)["spec"]
        resources = {**spec["resources"], "gpu": gpu, **more.pop("resources", {})}
        self.declare("latticenodeclasses", name, {**spec, "resources": resources, **more})

    def add_pool(self, name: str, *classes: str, budget: float = 1000, most: int = 9, **more: Any) -> None:
        self.declare("latticepools", name, {**pool_body(name, classes, budget, most)["spec"], **more})

    def add_service(
        self, name: str, *, replicas: int = 1, cores: float = 0.25, version: int = 1, **fields: Any
    ) -> None:
        self.declare("latticeservices", name, service_body(replicas, cores, version, **fields)["spec"])

    def objects(self, kind: type[Kind]) -> list[Any]:
        return self._list(kind)

    def object(self, kind: type[Kind], name: str) -> Any:
        return next(found for found in self._list(kind) if found.metadata.name == name)

    def bill(self) -> int:
        """Micro-dollars per hour that the ledgers commit."""
        return sum(ledger.status.committed_micros for ledger in self._list(LatticeLedger))

    def machines(self) -> dict[str, dict[str, int]]:
        return {found.metadata.name: dict(found.spec.nodes) for found in self._list(LatticeCluster)}

    def nodes(self) -> list[str]:
        return sorted(found.metadata.name for found in self._list(LatticeNode))

    def node_of(self, workload: str) -> str:
        return self.node_of_workload(workload)

    def ready(self) -> dict[str, int]:
        ready = {service.metadata.name: 0 for service in self._list(LatticeService)}
        for workload in self._list(LatticeWorkload):
            if workload.spec.service in ready and workload.status.ready:
                ready[workload.spec.service] += 1
        return ready

    def condition(self, kind: type[Kind], name: str, condition: str) -> Condition:
        found = find_condition(self.object(kind, name).status.conditions, condition)
        assert found is not None, f"{name} has no condition {condition}"
        return found

    def verdict(self, service: str) -> tuple[str, str]:
        decision = self.object(LatticeService, service).status.scheduler_decision
        return (decision.verdict, decision.reason)

    def events(self, reason: str) -> list[str]:
        page = self._run(self.world.store.list(Event.resource.id))
        found = [msgspec.json.decode(entry.value, type=Event) for entry in page.entries]
        return [event.message for event in found if event.reason == reason]
