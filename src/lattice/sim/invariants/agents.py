"""Invariants of agents: no start before the first assignments, no leader of an older term, no restart within
the back-off."""

from collections import defaultdict
from math import inf

from lattice.agent.host.runtime_protocol import InstanceId
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.sim.invariants.context import CheckerContext, Findings
from lattice.sim.world.settings import CLOCK_RATE_TOLERANCE, RETRY_FIRST_S, RETRY_MAX_S, STEADY_RUN_S

# Actions that end the back-off: the next start counts as the first attempt.
BACKOFF_RESET_ACTIONS = frozenset({"ApplyStopped", "Retry", "Release", "Reschedule"})
# Simulation time; "start", "refused" or "failure"; and, except for a failure, the workload.
InstanceEvent = tuple[float, str, str]


def check_assignments_obeyed(context: CheckerContext) -> Findings:
    """I-19: an agent starts no workload before its process has received assignments, and accepts no leader
    whose term is smaller than an accepted term."""
    for machine in [*context.world.removed_machines, *context.world.machines.values()]:
        for at, spec in machine.ground.starts_without_assignments[:3]:
            yield (
                "I-19",
                (
                    f"{machine.name} started {spec.workload} at {machine.clock.to_sim_time(at):.2f} s,"
                    " before its agent received assignments"
                ),
            )
        terms = machine.state_file.accepted_terms
        if terms != sorted(terms):
            yield (
                "I-19",
                f"{machine.name} accepted leaders of decreasing terms: {', '.join(map(str, terms))}",
            )


def check_restart_backoff(context: CheckerContext) -> Findings:
    """I-35: an agent restarts a failed workload only after the back-off, which doubles with every failure.

    Runs with wall-clock jumps are exempt, because a jump ends the back-off early.
    """
    if "clock jump" in context.run.fault_plan.kinds:
        return
    for machine in [*context.world.removed_machines, *context.world.machines.values()]:
        # Lets the machine record the instances that have ended by now.
        machine.ground.live_instances()
        events: dict[InstanceId, list[InstanceEvent]] = defaultdict(list)
        for at, spec, has_started in machine.ground.start_attempts:
            action = "start" if has_started else "refused"
            events[spec.id].append((machine.clock.to_sim_time(at), action, spec.workload))
        for at, instance_id in machine.ground.failures:
            events[instance_id].append((machine.clock.to_sim_time(at), "failure", ""))
        for timeline in events.values():
            yield from _early_restarts(context, machine.name, sorted(timeline))


def _early_restarts(context: CheckerContext, node: str, events: list[InstanceEvent]) -> Findings:
    """The starts of an instance on a node within the back-off of its last failure."""
    count, began, failed_at = 0, -inf, -inf
    for at, action, workload in events:
        if action != "failure":
            if _resets_backoff(context, workload, failed_at, at):
                count = 0
            # The agent may run on a fast clock, so the wait is shorter in simulation time.
            min_wait_s = (
                min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** (count - 1)) / (1 + CLOCK_RATE_TOLERANCE)
                if count
                else 0.0
            )
            if at - failed_at < min_wait_s:
                words = f"{workload} restarted on {node} {at - failed_at:.2f} s after failure {count}"
                yield (
                    "I-35",
                    f"{words}, at {failed_at:.2f} s; the minimum wait is {min_wait_s:.2f} s",
                )
            began = at
        # A failure after a steady run counts as the first failure again.
        if action != "start":
            count = (
                1
                if action == "failure" and at - began >= STEADY_RUN_S / (1 + CLOCK_RATE_TOLERANCE)
                else count + 1
            )
            failed_at = at


def _resets_backoff(context: CheckerContext, workload: str, since: float, until: float) -> bool:
    """Report whether a user or the leader changed, moved, stopped or retried the workload between two times,
    or a new leader was elected.

    A new leader may end the back-off early, because the clock of its host differs.
    """
    if any(since <= election.at <= until for election in context.world.store.elections):
        return True
    versions = context.snapshot.versions_between(LatticeWorkload, workload, since, until)
    identities = {
        (version.metadata.uid, version.metadata.generation, str(version.status.binding))
        for version in versions
    }
    # Another uid, generation or binding: the workload was created again, changed or moved.
    if len(identities) > 1:
        return True
    return any(
        RETRY_REQUESTED_ANNOTATION in version.metadata.annotations
        or version.status.last_action in BACKOFF_RESET_ACTIONS
        for version in versions
    )
