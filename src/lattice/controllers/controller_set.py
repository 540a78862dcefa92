"""All controllers of one term, wired: who is told of what, and with which means they act."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.controllers.services.agreements import Agreements
from lattice.controllers.services.aside import aside
from lattice.controllers.automation.rules import Automation
from lattice.controllers.automation.webhook_queue import Calls
from lattice.controllers.services.clusters import Clusters, Mint
from lattice.controllers.nodes.eviction import Departures
from lattice.controllers.nodes.drift import Drifts
from lattice.controllers.services.fleet_metrics import Figures
from lattice.controllers.garbage.jointokens import JoinTokens
from lattice.controllers.runtime.loop import Loop, Pace, run_all
from lattice.controllers.nodes.node_health import Nodes
from lattice.controllers.runtime.context import Office
from lattice.controllers.services.replicas import Replicas
from lattice.controllers.scheduler.scheduler import SchedulingController
from lattice.controllers.services.services import GRACE, Services
from lattice.controllers.services.service_status import Statuses
from lattice.controllers.services.supply_status import Supply
from lattice.controllers.services.world_cache import Tables
from lattice.controllers.automation.webhook_client import Poster
from lattice.controllers.nodes.workloads import Workloads
from lattice.providers.protocol import Provider
from lattice.lifecycle.workload import Graces
from lattice.lifecycle.node_health import NodeTimes
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.cycle.profile import DEFAULT, PLAIN, PRESETS, ProfileSpec


@dataclass(frozen=True)
class Means:
    """What controllers need besides the store: the same in every term of a server."""

    mint: Mint
    tables: Callable[[], Tables]
    poster: Poster
    providers: Mapping[str, Provider] = field(default_factory=dict)
    times: NodeTimes = field(default_factory=NodeTimes)
    graces: Graces = field(default_factory=Graces)
    pace: Pace = field(default_factory=Pace)
    interval: float = 5.0
    room_grace: float = GRACE
    profile: ProfileSpec = PRESETS[DEFAULT]
    plain: ProfileSpec | None = PRESETS[PLAIN]  # of workloads that belong to no service; None: the same
    endpoint: Callable[[], str] = lambda: ""  # where machines reach the control plane
    controllers: str = "*"  # which of them run: names, * for all, -NAME for all but one

    def runs(self, controller: str) -> bool:
        words = [word.strip() for word in self.controllers.split(",")]
        return f"-{controller}" not in words and ("*" in words or controller in words)

    @property
    def adapters(self) -> frozenset[str]:
        return frozenset(self.providers)


class Acting:
    """`before`: the node table of an earlier term of this server, which has learned what the workloads are like."""

    def __init__(self, office: Office, means: Means, before: NodeTable | None = None) -> None:
        self.office = office
        self.nodes = Nodes(office, means.times, means.pace)
        departures = Departures(office, means.pace, means.room_grace)
        replicas = Replicas(office, surges=lambda: departures.surges, leaving=departures.why_leave).loop()
        departures.on_surge(replicas.wake)
        self.scheduling = SchedulingController(
            office, means.profile, before, departures.why_leave, means.plain
        )
        calls = Calls(office, means.poster)
        every: list[Loop] = [
            self.nodes.loop(),
            departures.loop(),
            Workloads(office, self.nodes, departures, means.graces, means.interval, means.pace).loop(),
            self.scheduling.loop(),
            replicas,
            Drifts(office).loop(),
            Services(office, means.tables, means.adapters, aside, means.room_grace).loop(),
            Clusters(office, means.providers, means.mint, means.endpoint).loop(),
            Supply(office, means.adapters, lambda: means.tables()[0]).loop(),
            Statuses(office).loop(),
            Agreements(office).loop(),
            calls.loop(),
            Automation(office, calls).loop(),
            Figures(office).loop(),
            JoinTokens(office).loop(),
        ]
        self.loops = [loop for loop in every if means.runs(loop.controller.name)]

    async def run(self) -> bool:
        """Until stopped, or until a write is refused because the term is over; says whether that was why."""
        listening = asyncio.create_task(self.office.presence.run())
        try:
            if self.loops:
                return await run_all(self.loops, self.office.copies)
            await asyncio.gather(*(copy.run() for copy in self.office.copies))  # the agents' side reads them
            return False
        finally:
            listening.cancel()

    def stop(self) -> None:
        """What is in hand is finished, nothing else begun."""
        for loop in self.loops:
            loop.stop()

    @property
    def pending(self) -> int:
        return sum(loop.pending for loop in self.loops)

    @property
    def last_look(self) -> str | None:
        return max((loop.last_look for loop in self.loops if loop.last_look), default=None)
