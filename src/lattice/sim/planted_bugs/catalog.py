"""Catalog of planted bugs: the checker must find every bug that is planted in the real code."""

from collections.abc import Callable
from dataclasses import dataclass

from lattice.sim.planted_bugs import binding, lifecycle, money, writes


@dataclass(frozen=True)
class PlantedBug:
    """A bug by description. `violates` names the invariants that the bug breaks; `plant` patches the code."""

    description: str
    violates: tuple[str, ...]
    plant: Callable[[], None]


PLANTED_BUGS: dict[str, PlantedBug] = {
    "no-fence": PlantedBug("controllers write without a fence", ("I-09",), writes.no_fence),
    "fence-read-again": PlantedBug(
        "the term is read again before each write", ("I-08", "I-09"), writes.fence_read_again
    ),
    "no-compare": PlantedBug("the store compares no revisions", ("I-11", "I-12", "I-22"), writes.no_compare),
    "blind-ledger": PlantedBug(
        "a ledger is read, added to and written blindly", ("I-20", "I-22"), money.blind_ledger
    ),
    "no-limit": PlantedBug("a hard limit refuses nothing", ("I-20",), money.no_limit),
    "float-money": PlantedBug("parts of a micro-dollar are rounded away", ("I-22",), money.float_money),
    "unpaid-machines": PlantedBug("machines are made and no ledger pays", ("I-22",), money.unpaid_machines),
    "paid-back-too-early": PlantedBug(
        "money is given back before the machine is gone", ("I-22",), money.paid_back_too_early
    ),
    "removed-with-work": PlantedBug(
        "machines are removed with work on them", ("I-27",), money.removed_with_work
    ),
    "stop-before-switch": PlantedBug(
        "old replicas are stopped before new ones are ready", ("I-24",), lifecycle.stop_before_switch
    ),
    "drain-below-least": PlantedBug(
        "a drain stops replicas that are needed", ("I-24",), lifecycle.drain_below_least
    ),
    "prepared-for-ever": PlantedBug(
        "what a dead attempt prepared is never given up", ("I-16", "I-32"), binding.prepared_for_ever
    ),
    "wall-clock-lease": PlantedBug(
        "a lease is measured by the wall clock", ("I-10",), writes.wall_clock_lease
    ),
    "swallowed-gap": PlantedBug("a gap in a watch is passed over", ("I-06", "I-32"), writes.swallowed_gap),
    "missed-deletions": PlantedBug(
        "some deletions do not reach the copies", ("I-06", "I-32"), writes.missed_deletions
    ),
    "started-twice": PlantedBug("an agent starts what runs already", ("I-19",), lifecycle.started_twice),
    "moved-too-soon": PlantedBug(
        "what a silent node ran is moved as soon as it is missed", ("I-13",), lifecycle.moved_too_soon
    ),
    "certain-too-soon": PlantedBug(
        "a strict copy is taken to be dead too soon", ("I-13",), lifecycle.certain_too_soon
    ),
    "certain-at-once": PlantedBug(
        "how long a strict copy may live is not looked at, only how long nodes are waited for",
        ("I-13",),
        lifecycle.certain_at_once,
    ),
    "contact-too-late": PlantedBug(
        "a node counts its silence from 12 s after it was answered", ("I-13",), lifecycle.contact_too_late
    ),
    "twice-the-room": PlantedBug(
        "nodes are taken to be twice as large as they are", ("I-12",), binding.twice_the_room
    ),
    "no-ready-check": PlantedBug(
        "readiness and cordons are not looked at", ("I-14",), binding.no_ready_check
    ),
    "no-taint-check": PlantedBug("taints are not looked at", ("I-14",), binding.no_taint_check),
    "no-label-check": PlantedBug("labels of pools are not looked at", ("I-14",), binding.no_label_check),
    "no-compliance-check": PlantedBug(
        "certificates of pools are not looked at", ("I-14",), binding.no_compliance_check
    ),
    "no-distance-check": PlantedBug(
        "who must be far from others is put beside them", ("I-14",), binding.no_distance_check
    ),
    "no-spread-check": PlantedBug("replicas are not spread over nodes", ("I-14",), binding.no_spread_check),
    "broken-gang": PlantedBug("a group is bound one by one", ("I-15",), binding.broken_gang),
    "no-lock": PlantedBug("nodes are bound to without their lock", ("I-17",), binding.no_lock),
    "any-lock": PlantedBug("somebody else's lock is taken for one's own", ("I-17",), binding.any_lock),
    "bound-after-its-time": PlantedBug(
        "what was prepared is bound however late", ("I-16",), binding.bound_after_its_time
    ),
    "unjust-room": PlantedBug("the equally important must make room", ("I-18",), binding.unjust_room),
    "dropped-write": PlantedBug(
        "a change is acknowledged at the revision before it", ("I-01",), writes.dropped_write
    ),
    "not-found": PlantedBug("what is there is said not to be", ("I-04",), writes.not_found),
    "forgotten-month": PlantedBug(
        "what a month cost is forgotten when it ends", ("I-22",), money.forgotten_month
    ),
    "half-price": PlantedBug("machines are paid for at half their price", ("I-22",), money.half_price),
    "lost-write": PlantedBug("a change is acknowledged and not written", ("I-01",), writes.lost_write),
    "written-and-refused": PlantedBug(
        "a creation is written and refused", ("I-03",), writes.written_and_refused
    ),
    "stale-reads": PlantedBug("a read is answered from an old copy", ("I-04",), writes.stale_reads),
    "foreign-node": PlantedBug("a machine that joins writes another's node", ("I-38",), writes.foreign_node),
    "trickling-status": PlantedBug(
        "money that trickles is written each time", ("I-33",), money.trickling_status
    ),
    "given-up-after-conflict": PlantedBug(
        "who loses a race is not looked at again, ever", ("I-32",), writes.given_up_after_conflict
    ),
    "restless": PlantedBug("replicas that are as they should be are replaced", ("I-25",), lifecycle.restless),
    "room-below-least": PlantedBug(
        "replicas that are needed make room for others", ("I-28",), lifecycle.room_below_least
    ),
    "same-again": PlantedBug("who loses a race writes the same again, unread", ("I-35",), writes.same_again),
    "forgotten-finalizer": PlantedBug(
        "the record of a workload goes while a node that nobody hears may still run it",
        ("I-13",),
        lifecycle.forgotten_finalizer,
    ),
    "older-terms": PlantedBug(
        "orders of an older term reach agents, which obey them", ("I-19",), lifecycle.older_terms
    ),
    "acts-before-it-is-told": PlantedBug(
        "an agent that starts anew goes by what its predecessor was told",
        ("I-19",),
        lifecycle.acts_before_it_is_told,
    ),
    "unheard-limit": PlantedBug(
        "a budget that is lowered while machines are taken is not heard", ("I-20",), money.unheard_limit
    ),
    "no-most-machines": PlantedBug(
        "how many machines a pool may have is not looked at", ("I-20",), money.no_most_machines
    ),
    "no-rollout": PlantedBug("replicas of an older revision stay", ("I-32",), lifecycle.no_rollout),
    "no-back-off": PlantedBug("what fails is started again at once", ("I-35",), lifecycle.no_back_off),
    "revision-twice": PlantedBug("two commits are of one revision", ("I-05",), writes.revision_twice),
    "blind-put": PlantedBug("what is put is written over whatever is there", ("I-01",), writes.blind_put),
    "mute": PlantedBug("who finds no node is not told why", ("I-34",), lifecycle.mute),
    "surplus-kept": PlantedBug("replicas that are too many stay", ("I-32",), lifecycle.surplus_kept),
}
