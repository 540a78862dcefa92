"""Bugs in what must go on, what must end, and what must be there once only."""

from dataclasses import replace
from typing import Any

from lattice.agent import executor as work
from lattice.agent import session as agent_loop
from lattice.controllers.nodes import eviction as departures
from lattice.controllers.nodes import node_health as nodes
from lattice.controllers.nodes import workloads
from lattice.controllers.scheduler import binding_records as deeds
from lattice.controllers.scheduler import disruption_budgets as disruptions
from lattice.controllers.services import replicas
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION
from lattice.lifecycle import node_health as noderules
from lattice.lifecycle import rollout
from lattice.lifecycle import workload as lifecycle
from lattice.server.agents import sessions as nodelink
from lattice.sim.planted_bugs.patching import patch_attribute


def stop_before_switch() -> None:
    """Old replicas go at once; new ones come when they come."""
    patch_attribute(
        rollout, "_removable", lambda unwanted, total, live: tuple(each.name for each in unwanted)
    )


def drain_below_least() -> None:
    drain = noderules.plan_drain
    patch_attribute(departures, "plan_drain", lambda residents, services, most=1: drain(residents, {}, most))


def started_twice() -> None:
    """An agent that starts anew does not take over what runs, and starts it once more."""

    async def adopt(self: Any) -> None:
        return None

    patch_attribute(work.Executor, "adopt", adopt)


def moved_too_soon() -> None:
    failover = noderules.decide_failover

    def hasty(disconnect: Any, node: Any, releases: Any, times: Any) -> Any:
        if node.silence >= times.not_ready_after:
            return noderules.Failover(True, "it is silent")
        return failover(disconnect, node, releases, times)

    patch_attribute(nodes, "decide_failover", hasty)


def certain_too_soon() -> None:
    """Strict copies are taken to be dead at the moment at which their node begins to count."""
    patch_attribute(noderules.NodeTimeouts, "certain_after", lambda self, stop_after: 1.0)
    patch_attribute(
        nodes,
        "evict_silent_nodes",
        lambda seen, before, now, times: noderules.SilentNodeEvictions(
            noderules.EvictionRateLimiter(
                frozenset(each.name for each in seen if each.silence >= times.not_ready_after)
            ),
            {},
            {},
            1.0,
        ),
    )
    failover = noderules.decide_failover
    patch_attribute(
        nodes,
        "decide_failover",
        lambda disconnect, node, releases, times: failover(
            disconnect, node, releases, replace(times, replace_after=times.not_ready_after)
        ),
    )


def certain_at_once() -> None:
    patch_attribute(noderules.NodeTimeouts, "certain_after", lambda self, stop_after: 1.0)


def contact_too_late() -> None:
    """A node counts its silence from a while after the answer came, not from when it asked."""

    async def heard(self: Any, beat: int) -> None:
        self.unanswered_heartbeats = {
            number: at for number, at in self.unanswered_heartbeats.items() if number > beat
        }
        await self.agent.record_contact(self.clock.monotonic() + 12.0)

    patch_attribute(agent_loop.AgentSession, "_on_heartbeat_ack", heard)


def acts_before_it_is_told() -> None:
    """An agent that starts anew goes by what its predecessor was told."""
    made = work.Executor.__post_init__

    def hasty(self: Any) -> None:
        made(self)
        self.may_act = True

    patch_attribute(work.Executor, "__post_init__", hasty)


def older_terms() -> None:
    """Every third order is of the term before, and agents obey it: neither side looks at terms."""
    orders = nodelink.AgentSessions._pending_assignments

    def late(self: Any, line: Any) -> Any:
        found = orders(self, line)
        if found is not None and found.number % 3 == 0:
            found.term -= 1
        return found

    def trusting(self: Any, said: Any) -> Any:
        agent_loop.raise_on_session_end(said)
        return said.welcome

    patch_attribute(nodelink.AgentSessions, "_pending_assignments", late)
    patch_attribute(
        agent_loop.AgentSession, "_accept_orders", lambda self, orders: self.executor.accept_orders(orders)
    )
    patch_attribute(agent_loop.Agent, "_check_welcome", trusting)


def forgotten_finalizer() -> None:
    """The record of a workload goes while its node may still run it."""
    patch_attribute(deeds, "_add_finalizer", lambda metadata: metadata)
    patch_attribute(workloads, "_metadata_change", _metadata_without_finalizer)


def _metadata_without_finalizer(workload: Any) -> Any:
    """As `workloads._metadata`, which holds nobody."""
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
    sort = rollout._diff_replicas

    def blind(wanted: Any, revision: str, live: Any, around: Any) -> Any:
        return sort(wanted, revision, [replace(each, revision=revision) for each in live], around)

    patch_attribute(rollout, "_diff_replicas", blind)


def no_back_off() -> None:
    patch_attribute(lifecycle, "backoff_remaining", lambda retry, now, rules=None: 0.0)


def mute() -> None:
    """Who finds no node is not told why."""
    unplaced = deeds.BindingRecords.mark_unschedulable
    patch_attribute(
        deeds.BindingRecords,
        "mark_unschedulable",
        lambda self, entry, why, kinds, grounds: unplaced(self, entry, "", kinds, grounds),
    )


def surplus_kept() -> None:
    stopping = replicas.ReplicaController._stop_writes
    patch_attribute(
        replicas.ReplicaController, "_stop_writes", lambda self, mine, names: stopping(self, mine, names[:0])
    )


def restless() -> None:
    """Whoever is as he should be is replaced all the same, one after the other."""
    steps = rollout.next_steps

    def restless(wanted: Any, revision: str, found: Any, *rest: Any) -> Any:
        asked, live = (
            steps(wanted, revision, found, *rest),
            [each for each in found if not each.is_terminating],
        )
        is_fine = asked.is_empty and len(live) == sum(wanted.values()) and all(each.is_ready for each in live)
        return replace(asked, start=tuple(sorted(wanted))[:1]) if is_fine else asked

    patch_attribute(replicas, "next_steps", restless)


def room_below_least() -> None:
    patch_attribute(disruptions, "disruptions_allowed", lambda found: found.available)
