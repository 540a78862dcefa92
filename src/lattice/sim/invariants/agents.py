"""What agents do with what they are told: nothing before they are told, nothing that is older, and no failing start too soon."""

from collections import defaultdict
from math import inf

from lattice.agent.host.runtime_protocol import InstanceId
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.sim.invariants.context import CheckerContext, Findings
from lattice.sim.world.machines import SimMachine
from lattice.sim.world.settings import CLOCK_RATE_TOLERANCE, RETRY_FIRST_S, RETRY_MAX_S, STEADY_RUN_S

BACKOFF_RESET_ACTIONS = frozenset(
    {"ApplyStopped", "Retry", "Release", "Reschedule"}
)  # actions after which the next start is another matter


def check_assignments_obeyed(seen: CheckerContext) -> Findings:
    """I-19: an agent starts nothing before it was told anything in this life of its, and obeys no leader older than one it obeyed."""
    for machine in [*seen.world.removed_machines, *seen.world.machines.values()]:
        for at, spec in machine.ground.starts_without_assignments[:3]:
            yield (
                "I-19",
                f"{machine.name} started {spec.workload} at {machine.clock.to_sim_time(at):.2f} s, before its agent was told anything",
            )
        terms = machine.state_file.accepted_terms
        if terms != sorted(terms):
            yield (
                "I-19",
                f"{machine.name} obeyed the leaders of terms {', '.join(map(str, terms))}, one after the other",
            )


def check_restart_backoff(seen: CheckerContext) -> Findings:
    """I-35: what failed is started again only when its wait is over, which doubles with each failure. Wall clocks that jump end waits."""
    if "clock jump" in seen.run.fault_plan.kinds:
        return
    for machine in [*seen.world.removed_machines, *seen.world.machines.values()]:
        for which, events in _instance_events(machine).items():
            yield from _early_restarts(seen, machine.name, which, events)


InstanceEvent = tuple[float, str, str]  # when, what: start, refused or failure; and the workload of a start


def _instance_events(machine: SimMachine) -> dict[InstanceId, list[InstanceEvent]]:
    """Starts and failures of each copy there, in the time of the simulation."""
    machine.ground.live_instances()
    found: dict[InstanceId, list[InstanceEvent]] = defaultdict(list)
    for at, spec, is_good in machine.ground.start_attempts:
        found[spec.id].append(
            (machine.clock.to_sim_time(at), "start" if is_good else "refused", spec.workload)
        )
    for at, which in machine.ground.failures:
        found[which].append((machine.clock.to_sim_time(at), "failure", ""))
    return {which: sorted(events) for which, events in found.items()}


def _early_restarts(
    seen: CheckerContext, node: str, which: InstanceId, events: list[InstanceEvent]
) -> Findings:
    count, began, failed_at = 0, -inf, -inf
    for at, what, workload in events:
        if what != "failure":
            if _resets_backoff(seen, workload, failed_at, at):
                count = 0
            least = (
                min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** (count - 1)) / (1 + CLOCK_RATE_TOLERANCE)
                if count
                else 0.0
            )
            if at - failed_at < least:
                words = f"{workload} was started on {node} {at - failed_at:.2f} s after it had failed"
                yield (
                    "I-35",
                    f"{words} for the {count}. time, at {failed_at:.2f} s; it was to wait for {least:.2f} s",
                )
            began = at
        if what != "start":
            count = (
                1
                if what == "failure" and at - began >= STEADY_RUN_S / (1 + CLOCK_RATE_TOLERANCE)
                else count + 1
            )
            failed_at = at


def _resets_backoff(seen: CheckerContext, workload: str, since: float, until: float) -> bool:
    """Somebody changed, moved, stopped or retried it meanwhile, or another leader, by whose clock the wait may be over, took office."""
    if any(since <= each.at <= until for each in seen.world.store.elections):
        return True
    known = seen.snapshot.versions_between(LatticeWorkload, workload, since, until)
    if len({(each.metadata.uid, each.metadata.generation, str(each.status.binding)) for each in known}) > 1:
        return True
    return any(
        RETRY_REQUESTED_ANNOTATION in each.metadata.annotations
        or each.status.last_action in BACKOFF_RESET_ACTIONS
        for each in known
    )
