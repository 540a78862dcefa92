"""All controllers of one term, wired: who is told of what, and with which means they act."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.controllers.automation.rules import AutomationController
from lattice.controllers.automation.webhook_client import WebhookClient
from lattice.controllers.automation.webhook_queue import WebhookQueue
from lattice.controllers.garbage.ttl import JoinTokenController
from lattice.controllers.nodes.drift import DriftController
from lattice.controllers.nodes.eviction import EvictionController
from lattice.controllers.nodes.node_health import NodeHealthController
from lattice.controllers.nodes.workloads import WorkloadController
from lattice.controllers.runtime.background import run_in_background
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, run_all
from lattice.controllers.scheduler.scheduler import SchedulingController
from lattice.controllers.services.agreements import AgreementController
from lattice.controllers.services.clusters import ClusterController, TokenMinter
from lattice.controllers.services.fleet_metrics import FleetMetricsController
from lattice.controllers.services.replicas import ReplicaController
from lattice.controllers.services.service_status import ServiceStatusController
from lattice.controllers.services.services import UNSCHEDULABLE_GRACE_S, PlacementController
from lattice.controllers.services.supply_status import SupplyStatusController
from lattice.controllers.services.world_cache import PricingTables
from lattice.errors import Invalid
from lattice.lifecycle.node_health import NodeTimeouts
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods
from lattice.providers.protocol import Provider
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, STANDALONE_PROFILE, ProfileSpec
from lattice.scheduling.table.node_table import NodeTable
from lattice.settings import Settings


@dataclass(frozen=True)
class ControllerDependencies:
    """What controllers need besides the store: the same in every term of a server."""

    mint_token: TokenMinter
    pricing_tables: Callable[[], PricingTables]
    webhook_client: WebhookClient
    providers: Mapping[str, Provider] = field(default_factory=dict)
    node_timeouts: NodeTimeouts = field(default_factory=NodeTimeouts)
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    concurrency: Concurrency = field(default_factory=Concurrency)
    recheck_interval_s: float = 5.0
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    profile: ProfileSpec = PRESETS[DEFAULT_PROFILE]
    standalone_profile: ProfileSpec | None = PRESETS[
        STANDALONE_PROFILE
    ]  # of workloads that belong to no service; None: the same
    endpoint: Callable[[], str] = lambda: ""  # where machines reach the control plane
    enabled_controllers: str = "*"  # which of them run: names, * for all, -NAME for all but one

    def is_enabled(self, controller: str) -> bool:
        words = [word.strip() for word in self.enabled_controllers.split(",")]
        return f"-{controller}" not in words and ("*" in words or controller in words)

    @property
    def adapters(self) -> frozenset[str]:
        return frozenset(self.providers)


class ControllerSet:
    """`before`: the node table of an earlier term of this server, which has learned what the workloads are like."""

    def __init__(
        self,
        office: ControllerContext,
        means: ControllerDependencies,
        previous_table: NodeTable | None = None,
    ) -> None:
        self.context = office
        self.node_health = NodeHealthController(office, means.node_timeouts, means.concurrency)
        departures = EvictionController(office, means.concurrency, means.unschedulable_grace_s)
        replicas = ReplicaController(
            office, surges=lambda: departures.surges, eviction_reason=departures.eviction_reason
        ).loop()
        departures.on_surge_change(replicas.wake)
        self.scheduling = SchedulingController(
            office, means.profile, previous_table, departures.eviction_reason, means.standalone_profile
        )
        calls = WebhookQueue(office, means.webhook_client)
        every: list[Loop] = [
            self.node_health.loop(),
            departures.loop(),
            WorkloadController(
                office,
                self.node_health,
                departures,
                means.grace_periods,
                means.recheck_interval_s,
                means.concurrency,
            ).loop(),
            self.scheduling.loop(),
            replicas,
            DriftController(office).loop(),
            PlacementController(
                office, means.pricing_tables, means.adapters, run_in_background, means.unschedulable_grace_s
            ).loop(),
            ClusterController(office, means.providers, means.mint_token, means.endpoint).loop(),
            SupplyStatusController(office, means.adapters, lambda: means.pricing_tables()[0]).loop(),
            ServiceStatusController(office).loop(),
            AgreementController(office).loop(),
            calls.loop(),
            AutomationController(office, calls).loop(),
            FleetMetricsController(office).loop(),
            JoinTokenController(office).loop(),
        ]
        self.loops = [loop for loop in every if means.is_enabled(loop.controller.name)]

    async def run(self) -> bool:
        """Until stopped, or until a write is refused because the term is over; says whether that was why."""
        listening = asyncio.create_task(self.context.presence.run())
        try:
            if self.loops:
                return await run_all(self.loops, self.context.caches)
            await asyncio.gather(*(copy.run() for copy in self.context.caches))  # the agents' side reads them
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
    def last_reconciled_at(self) -> str | None:
        return max((loop.last_reconciled_at for loop in self.loops if loop.last_reconciled_at), default=None)


def node_timeouts(settings: Settings) -> NodeTimeouts:
    beat, lost, replaced = settings.heartbeat, settings.node_lost_after, settings.replace_after
    if not 0 < beat < lost < replaced:
        raise Invalid(
            f"heartbeat {beat:g} s, node-lost-after {lost:g} s, replace-after {replaced:g} s: each must be longer than the one before",
            where="--heartbeat",
            fix="keep their proportions when you change them: 10, 40, 120",
        )
    return NodeTimeouts(beat, lost, replaced, evictions_per_second=settings.evictions_per_second)


def grace_periods(settings: Settings) -> GracePeriods:
    retry = RetryPolicy(
        settings.retry_first, settings.retry_longest, settings.retry_attempts, 2 * settings.retry_longest
    )
    return GracePeriods(settings.missing_grace, settings.start_grace, settings.stop_grace, retry)


def concurrency(settings: Settings) -> Concurrency:
    return Concurrency(workers=settings.reconcile_workers)
