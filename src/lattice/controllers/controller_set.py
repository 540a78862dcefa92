"""Build the controllers of one term from the controller context and the dependencies, and connect the
wake-ups between controllers."""

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
from lattice.controllers.services.declarations import DeclarationController
from lattice.controllers.services.fleet_metrics import FleetMetricsController
from lattice.controllers.services.ledger_upkeep import LedgerUpkeepController
from lattice.controllers.services.placement import UNSCHEDULABLE_GRACE_S, PlacementController
from lattice.controllers.services.replicas import ReplicaController
from lattice.controllers.services.service_status import ServiceStatusController
from lattice.controllers.services.supply_status import SupplyStatusController
from lattice.errors import Invalid
from lattice.kinds.meta.validator import did_you_mean
from lattice.lifecycle.eviction import DecidedEvictions
from lattice.lifecycle.node_health import DEFAULT_THRESHOLDS, NodeTimeouts, PressureThresholds
from lattice.lifecycle.retry import RetryPolicy
from lattice.lifecycle.workload import GracePeriods
from lattice.placement.feed.placement_input import PricingTables
from lattice.providers.protocol import Provider, adapter_name
from lattice.scheduling.cycle.profile import DEFAULT_PROFILE, PRESETS, STANDALONE_PROFILE, ProfileSpec
from lattice.scheduling.table.node_table import NodeTable
from lattice.settings import CONTROLLER_NAMES, Settings


@dataclass(frozen=True)
class ControllerDependencies:
    """The dependencies of controllers besides the store: the same objects in every term of a server."""

    mint_token: TokenMinter
    pricing_tables: Callable[[], PricingTables]
    webhook_client: WebhookClient
    providers: Mapping[str, Provider] = field(default_factory=dict)
    node_timeouts: NodeTimeouts = field(default_factory=NodeTimeouts)
    pressure_thresholds: PressureThresholds = DEFAULT_THRESHOLDS
    grace_periods: GracePeriods = field(default_factory=GracePeriods)
    concurrency: Concurrency = field(default_factory=Concurrency)
    recheck_interval_s: float = 5.0
    unschedulable_grace_s: float = UNSCHEDULABLE_GRACE_S
    profile: ProfileSpec = PRESETS[DEFAULT_PROFILE]
    # The profile of workloads that belong to no service; None: the profile of services.
    standalone_profile: ProfileSpec | None = PRESETS[STANDALONE_PROFILE]
    # The address at which machines reach the control plane.
    endpoint: Callable[[], str] = lambda: ""
    # Names of controllers, * for all controllers, -NAME to leave a controller out.
    enabled_controllers: str = "*"

    def is_enabled(self, controller: str) -> bool:
        """Whether the setting `enabled_controllers` lets the controller run."""
        words = [word.strip() for word in self.enabled_controllers.split(",")]
        return f"-{controller}" not in words and ("*" in words or controller in words)

    async def adapters(self) -> Mapping[str, frozenset[str] | None]:
        """The providers with an adapter, NAME=manual for a provider that creates no machines, with the
        runtimes of their machines."""
        return {
            adapter_name(name, provider): await provider.runtimes()
            for name, provider in self.providers.items()
        }


class ControllerSet:
    """All controllers of one term, with the wake-ups between controllers.

    `previous_table` is the node table of an earlier term of this server. The scheduler takes over the
    statistics of GPU requests that this table has learned (scheduling/table/gpu_demand.py).
    """

    def __init__(
        self,
        context: ControllerContext,
        dependencies: ControllerDependencies,
        previous_table: NodeTable | None = None,
    ) -> None:
        self.context = context
        self.node_health = NodeHealthController(
            context, dependencies.node_timeouts, dependencies.pressure_thresholds, dependencies.concurrency
        )
        evictions = DecidedEvictions()
        eviction = EvictionController(
            context,
            evictions,
            dependencies.concurrency,
            dependencies.unschedulable_grace_s,
            dependencies.pressure_thresholds,
        )
        replicas = ReplicaController(
            context,
            surges=lambda: eviction.surges,
            evictions=evictions,
            unschedulable_grace_s=dependencies.unschedulable_grace_s,
        ).loop()
        # A drain that needs a surge replica wakes the controller that creates the replica.
        eviction.on_surge_change(replicas.wake)
        self.scheduling = SchedulingController(
            context,
            dependencies.profile,
            previous_table,
            evictions,
            dependencies.standalone_profile,
        )
        webhooks = WebhookQueue(context, dependencies.webhook_client)
        loops: list[Loop] = [
            self.node_health.loop(),
            eviction.loop(),
            WorkloadController(
                context,
                self.node_health,
                evictions,
                dependencies.grace_periods,
                dependencies.recheck_interval_s,
                dependencies.concurrency,
            ).loop(),
            self.scheduling.loop(),
            replicas,
            DriftController(context).loop(),
            PlacementController(
                context,
                dependencies.pricing_tables,
                dependencies.adapters,
                run_in_background,
                dependencies.unschedulable_grace_s,
            ).loop(),
            ClusterController(
                context, dependencies.providers, dependencies.mint_token, dependencies.endpoint
            ).loop(),
            SupplyStatusController(
                context,
                dependencies.adapters,
                lambda: dependencies.pricing_tables().book,
                notify=webhooks.enqueue,
            ).loop(),
            LedgerUpkeepController(context, lambda: dependencies.pricing_tables().book).loop(),
            ServiceStatusController(context).loop(),
            DeclarationController(context).loop(),
            AgreementController(context).loop(),
            webhooks.loop(),
            AutomationController(context, webhooks).loop(),
            FleetMetricsController(context).loop(),
            JoinTokenController(context).loop(),
        ]
        self.loops = [loop for loop in loops if dependencies.is_enabled(loop.controller.name)]

    async def run(self) -> bool:
        """Run the controllers until stopped or fenced; return True if the store rejected a write because the
        term is over."""
        presence_task = asyncio.create_task(self.context.presence.run())
        try:
            if self.loops:
                return await run_all(self.loops, self.context.caches)
            # Without controllers the caches still run: the agent sessions read the caches.
            await asyncio.gather(*(cache.run() for cache in self.context.caches))
            return False
        finally:
            presence_task.cancel()

    def stop(self) -> None:
        """Stop every loop: no reconcile starts any more, and running reconciles get a short time to end."""
        for loop in self.loops:
            loop.stop()

    @property
    def pending(self) -> int:
        return sum(loop.pending for loop in self.loops)

    @property
    def last_reconciled_at(self) -> str | None:
        return max((loop.last_reconciled_at for loop in self.loops if loop.last_reconciled_at), default=None)


def node_timeouts(settings: Settings) -> NodeTimeouts:
    """The node timeouts from the settings; raise Invalid unless heartbeat < node-lost-after <
    replace-after."""
    heartbeat, lost_after, replace_after = (
        settings.heartbeat,
        settings.node_lost_after,
        settings.replace_after,
    )
    # A node that counts as lost before its next heartbeat is due would be lost all the time.
    if not 0 < heartbeat < lost_after < replace_after:
        raise Invalid(
            f"heartbeat {heartbeat:g} s, node-lost-after {lost_after:g} s, replace-after {replace_after:g} s: "
            "each must be longer than the previous duration",
            where="--heartbeat",
            fix="keep the proportions 10, 40, 120 when you change these settings",
        )
    return NodeTimeouts(
        heartbeat, lost_after, replace_after, evictions_per_second=settings.evictions_per_second
    )


def enabled_controllers(settings: Settings) -> str:
    """The setting that chooses controllers; raise Invalid for a word that names no controller: a misspelt name
    would leave out a controller without a sign."""
    words = [word.strip() for word in settings.controllers.split(",") if word.strip()]
    names = (*CONTROLLER_NAMES, "*")
    unknown = [word for word in words if word.removeprefix("-") not in names or word == "-*"]
    if unknown:
        hint = did_you_mean(unknown[0].removeprefix("-"), CONTROLLER_NAMES)
        raise Invalid(
            f'there is no controller "{unknown[0]}"{hint}',
            where="--controllers",
            fix=f"use * for all, -NAME to exclude one, or names of: {', '.join(CONTROLLER_NAMES)}",
        )
    return settings.controllers


def pressure_thresholds(settings: Settings) -> PressureThresholds:
    """The thresholds of node pressure from the settings; raise Invalid for a value that is no share."""
    for name, share in (
        ("memory-pressure", settings.memory_pressure),
        ("disk-pressure", settings.disk_pressure),
    ):
        if not 0 <= share < 1:
            raise Invalid(
                f"must be a share from 0 to below 1, got {share:g}",
                where=f"--{name}",
                fix="0.05 means 5 % of the node; 0 turns the check off",
            )
    return PressureThresholds(settings.memory_pressure, settings.disk_pressure)


def grace_periods(settings: Settings) -> GracePeriods:
    # Failures are forgotten once the workload has run for twice the longest back-off.
    retry = RetryPolicy(
        settings.retry_first,
        settings.retry_longest,
        settings.retry_attempts,
        settings.retry_reset,
        settings.retry_service_longest,
    )
    return GracePeriods(settings.missing_grace, settings.start_grace, settings.stop_grace, retry)


def concurrency(settings: Settings) -> Concurrency:
    return Concurrency(workers=settings.reconcile_workers)
