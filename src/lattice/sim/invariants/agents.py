"""What agents do with what they are told: nothing before they are told, nothing that is older, and no failing start too soon."""

from collections import defaultdict
from math import inf

from lattice.agent.host.runtime_protocol import InstanceId
from lattice.kinds.workload import RETRY_REQUESTED, LatticeWorkload
from lattice.sim.world.machines import SimMachine
from lattice.sim.invariants.context import Found, Seen
from lattice.sim.world.settings import FIRST_WAIT, LONGEST_WAIT, SKEW, STEADY

EXCUSES = frozenset(
    {"ApplyStopped", "Retry", "Release", "Reschedule"}
)  # actions after which the next start is another matter


def obedience(seen: Seen) -> Found:
    """I-19: an agent starts nothing before it was told anything in this life of its, and obeys no leader older than one it obeyed."""
    for machine in [*seen.world.gone, *seen.world.machines.values()]:
        for at, spec in machine.ground.unasked[:3]:
            yield (
                "I-19",
                f"{machine.name} started {spec.workload} at {machine.clock.truth(at):.2f} s, before its agent was told anything",
            )
        terms = machine.notes.terms
        if terms != sorted(terms):
            yield (
                "I-19",
                f"{machine.name} obeyed the leaders of terms {', '.join(map(str, terms))}, one after the other",
            )


def patience(seen: Seen) -> Found:
    """I-35: what failed is started again only when its wait is over, which doubles with each failure. Wall clocks that jump end waits."""
    if "clock jump" in seen.run.swarm.kinds:
        return
    for machine in [*seen.world.gone, *seen.world.machines.values()]:
        for which, events in _stories(machine).items():
            yield from _hasty(seen, machine.name, which, events)


Event = tuple[float, str, str]  # when, what: start, refused or failure; and the workload of a start


def _stories(machine: SimMachine) -> dict[InstanceId, list[Event]]:
    """Starts and failures of each copy there, in the time of the simulation."""
    machine.ground.live()
    found: dict[InstanceId, list[Event]] = defaultdict(list)
    for at, spec, is_good in machine.ground.tried:
        found[spec.id].append((machine.clock.truth(at), "start" if is_good else "refused", spec.workload))
    for at, which in machine.ground.failures:
        found[which].append((machine.clock.truth(at), "failure", ""))
    return {which: sorted(events) for which, events in found.items()}


def _hasty(seen: Seen, node: str, which: InstanceId, events: list[Event]) -> Found:
    count, began, failed_at = 0, -inf, -inf
    for at, what, workload in events:
        if what != "failure":
            if _is_another_matter(seen, workload, failed_at, at):
                count = 0
            least = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (count - 1)) / (1 + SKEW) if count else 0.0
            if at - failed_at < least:
                words = f"{workload} was started on {node} {at - failed_at:.2f} s after it had failed"
                yield (
                    "I-35",
                    f"{words} for the {count}. time, at {failed_at:.2f} s; it was to wait for {least:.2f} s",
                )
            began = at
        if what != "start":
            count = 1 if what == "failure" and at - began >= STEADY / (1 + SKEW) else count + 1
            failed_at = at


def _is_another_matter(seen: Seen, workload: str, since: float, until: float) -> bool:
    """Somebody changed, moved, stopped or retried it meanwhile, or another leader, by whose clock the wait may be over, took office."""
    if any(since <= each.at <= until for each in seen.world.store.elections):
        return True
    known = seen.snap.between(LatticeWorkload, workload, since, until)
    if len({(each.metadata.uid, each.metadata.generation, str(each.status.binding)) for each in known}) > 1:
        return True
    return any(
        RETRY_REQUESTED in each.metadata.annotations or each.status.last_action in EXCUSES for each in known
    )
