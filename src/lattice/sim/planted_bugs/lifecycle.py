"""Planted bugs of rollouts, eviction, failover, agents and status."""

from dataclasses import replace
from typing import Any

from lattice.agent import executor, session
from lattice.controllers.nodes import eviction, workloads
from lattice.controllers.nodes import node_health as node_health_controller
from lattice.controllers.scheduler import binding_records, disruption_budgets
from lattice.controllers.services import replicas
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION
from lattice.lifecycle import drain, node_health, rollout
from lattice.lifecycle import workload as workload_lifecycle
from lattice.server.agents import sessions
from lattice.sim.planted_bugs.patching import patch_attribute


def stop_before_switch() -> None:
    """A rollout stops old replicas before new replicas are ready."""
    patch_attribute(
        rollout, "_removable", lambda unwanted, total, live: tuple(replica.name for replica in unwanted)
    )


def drain_below_least() -> None:
    plan_drain = drain.plan_drain
    patch_attribute(
        eviction, "plan_drain", lambda residents, services, most=1: plan_drain(residents, {}, most)
    )


def started_twice() -> None:
    """A restarted agent does not adopt running instances and starts them again."""

    async def adopt(self: Any) -> None:
        return None

    patch_attribute(executor.Executor, "adopt", adopt)


def moved_too_soon() -> None:
    decide_failover = node_health.decide_failover

    def decide_at_once(disconnect: Any, node: Any, releases: Any, times: Any) -> Any:
        if node.heartbeat_age >= times.not_ready_after:
            return node_health.Failover(True, "No heartbeat from the node")
        return decide_failover(disconnect, node, releases, times)

    patch_attribute(node_health_controller, "decide_failover", decide_at_once)


def certain_too_soon() -> None:
    """The leader considers copies with the disconnect policy `stop` dead as soon as the node is not ready."""
    patch_attribute(node_health.NodeTimeouts, "certain_after", lambda self, stop_after: 1.0)
    patch_attribute(
        node_health_controller,
        "evict_silent_nodes",
        lambda observed, previous, now, times: node_health.SilentNodeEvictions(
            node_health.EvictionRateLimiter(
                frozenset(node.name for node in observed if node.heartbeat_age >= times.not_ready_after)
            ),
            {},
            {},
            1.0,
        ),
    )
    decide_failover = node_health.decide_failover
    patch_attribute(
        node_health_controller,
        "decide_failover",
        lambda disconnect, node, releases, times: decide_failover(
            disconnect, node, releases, replace(times, replace_after=times.not_ready_after)
        ),
    )


def certain_at_once() -> None:
    patch_attribute(node_health.NodeTimeouts, "certain_after", lambda self, stop_after: 1.0)


def contact_too_late() -> None:
    """An agent counts silence from 12 s after the reply, not from its own heartbeat."""

    async def on_late_ack(self: Any, beat: int) -> None:
        self.unanswered_heartbeats = {
            number: at for number, at in self.unanswered_heartbeats.items() if number > beat
        }
        await self.agent.record_contact(self.clock.monotonic() + 12.0)

    patch_attribute(session.AgentSession, "_on_heartbeat_ack", on_late_ack)


def acts_before_assignments() -> None:
    """A restarted agent acts on the assignments of the previous agent process."""
    original = executor.Executor.__post_init__

    def act_at_once(self: Any) -> None:
        original(self)
        self.may_act = True

    patch_attribute(executor.Executor, "__post_init__", act_at_once)


def older_terms() -> None:
    """Every third assignment carries the previous term, and agents accept the assignment: neither side checks
    terms."""
    pending_assignments = sessions.AgentSessions._pending_assignments

    def with_older_term(self: Any, agent_session: Any) -> Any:
        assignments = pending_assignments(self, agent_session)
        if assignments is not None and assignments.number % 3 == 0:
            assignments.term -= 1
        return assignments

    def accept_welcome(self: Any, message: Any) -> Any:
        session.raise_on_session_end(message)
        return message.welcome

    patch_attribute(sessions.AgentSessions, "_pending_assignments", with_older_term)
    patch_attribute(
        session.AgentSession, "_accept_orders", lambda self, orders: self.executor.accept_orders(orders)
    )
    patch_attribute(session.Agent, "_check_welcome", accept_welcome)


def forgotten_finalizer() -> None:
    """A workload object is removed while the node may still run the workload."""
    # Two guards: the binding adds the finalizer, and the workload controller adds a missing finalizer.
    patch_attribute(binding_records, "_add_finalizer", lambda metadata: metadata)
    patch_attribute(workloads, "_metadata_change", _metadata_without_finalizer)


def _metadata_without_finalizer(workload: Any) -> Any:
    """As `workloads._metadata_change`, without a finalizer."""
    if RETRY_REQUESTED_ANNOTATION not in workload.metadata.annotations:
        return None
    annotations = {
        name: value
        for name, value in workload.metadata.annotations.items()
        if name != RETRY_REQUESTED_ANNOTATION
    }
    return lambda stored: stored | {"annotations": annotations}


def no_rollout() -> None:
    """Replicas of an older revision count as current."""
    diff_replicas = rollout._diff_replicas

    def diff_without_revision(desired: Any, revision: str, live: Any, around: Any) -> Any:
        return diff_replicas(
            desired, revision, [replace(replica, revision=revision) for replica in live], around
        )

    patch_attribute(rollout, "_diff_replicas", diff_without_revision)


def no_back_off() -> None:
    patch_attribute(workload_lifecycle, "backoff_remaining", lambda retry, now, rules=None: 0.0)


def mute() -> None:
    """An unschedulable workload gets no reason."""
    mark_unschedulable = binding_records.BindingRecords.mark_unschedulable
    patch_attribute(
        binding_records.BindingRecords,
        "mark_unschedulable",
        lambda self, entry, reason, kinds, record: mark_unschedulable(self, entry, "", kinds, record),
    )


def surplus_kept() -> None:
    stop_writes = replicas.ReplicaController._stop_writes
    patch_attribute(
        replicas.ReplicaController,
        "_stop_writes",
        lambda self, mine, names: stop_writes(self, mine, names[:0]),
    )


def restless() -> None:
    """The controller replaces healthy replicas, one after the next."""
    next_steps = rollout.next_steps

    def replace_healthy(desired: Any, revision: str, observed: Any, *arguments: Any) -> Any:
        steps, live = (
            next_steps(desired, revision, observed, *arguments),
            [replica for replica in observed if not replica.is_terminating],
        )
        is_fine = (
            steps.is_empty
            and len(live) == sum(desired.values())
            and all(replica.is_ready for replica in live)
        )
        return replace(steps, start=tuple(sorted(desired))[:1]) if is_fine else steps

    patch_attribute(replicas, "next_steps", replace_healthy)


def room_below_least() -> None:
    patch_attribute(disruption_budgets, "disruptions_allowed", lambda service: service.available)
