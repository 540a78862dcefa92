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
    "no-limit": PlantedBug("a hard limit rejects no charge", ("I-20",), money.no_limit),
    "float-money": PlantedBug("parts of a micro-dollar are rounded away", ("I-22",), money.float_money),
    "unpaid-machines": PlantedBug("machines are created without a charge", ("I-22",), money.unpaid_machines),
    "paid-back-too-early": PlantedBug(
        "a charge is released before its machine is deleted", ("I-22",), money.paid_back_too_early
    ),
    "removed-with-work": PlantedBug(
        "machines are deleted while workloads run on them", ("I-27",), money.removed_with_work
    ),
    "stop-before-switch": PlantedBug(
        "old replicas are stopped before new ones are ready", ("I-24",), lifecycle.stop_before_switch
    ),
    "drain-below-least": PlantedBug(
        "a drain stops replicas that are needed", ("I-24",), lifecycle.drain_below_least
    ),
    "prepared-for-ever": PlantedBug(
        "reservations of a crashed attempt are never released", ("I-16", "I-32"), binding.prepared_for_ever
    ),
    "wall-clock-lease": PlantedBug(
        "a lease is measured by the wall clock", ("I-10",), writes.wall_clock_lease
    ),
    "swallowed-gap": PlantedBug("a gap in a watch is ignored", ("I-06", "I-32"), writes.swallowed_gap),
    "missed-deletions": PlantedBug(
        "some deletions do not reach the caches", ("I-06", "I-32"), writes.missed_deletions
    ),
    "started-twice": PlantedBug(
        "an agent starts a workload that already runs", ("I-19",), lifecycle.started_twice
    ),
    "moved-too-soon": PlantedBug(
        "workloads of a silent node fail over at the first missed heartbeat",
        ("I-13",),
        lifecycle.moved_too_soon,
    ),
    "certain-too-soon": PlantedBug(
        "a strict copy counts as stopped too early", ("I-13",), lifecycle.certain_too_soon
    ),
    "certain-at-once": PlantedBug(
        "failover ignores stopAfter of a strict copy and waits only for the node timeout",
        ("I-13",),
        lifecycle.certain_at_once,
    ),
    "contact-too-late": PlantedBug(
        "a node measures lost contact from 12 s after the last reply", ("I-13",), lifecycle.contact_too_late
    ),
    "twice-the-room": PlantedBug(
        "the scheduler doubles the capacity of nodes", ("I-12",), binding.twice_the_room
    ),
    "no-ready-check": PlantedBug(
        "the scheduler ignores readiness and cordons", ("I-14",), binding.no_ready_check
    ),
    "no-taint-check": PlantedBug("the scheduler ignores taints", ("I-14",), binding.no_taint_check),
    "no-label-check": PlantedBug("placement ignores labels of pools", ("I-14",), binding.no_label_check),
    "no-compliance-check": PlantedBug(
        "placement ignores compliance of pools", ("I-14",), binding.no_compliance_check
    ),
    "no-distance-check": PlantedBug(
        "the scheduler ignores anti-affinity", ("I-14",), binding.no_distance_check
    ),
    "no-spread-check": PlantedBug("replicas are not spread over nodes", ("I-14",), binding.no_spread_check),
    "broken-gang": PlantedBug("a group is bound one by one", ("I-15",), binding.broken_gang),
    "no-lock": PlantedBug("nodes are bound to without their lock", ("I-17",), binding.no_lock),
    "any-lock": PlantedBug(
        "a scheduler treats the lock of another scheduler as its own", ("I-17",), binding.any_lock
    ),
    "bound-after-its-time": PlantedBug(
        "an expired reservation is bound", ("I-16",), binding.bound_after_its_time
    ),
    "unjust-room": PlantedBug("workloads of equal priority are preempted", ("I-18",), binding.unjust_room),
    "dropped-write": PlantedBug(
        "a change is acknowledged at the revision before it", ("I-01",), writes.dropped_write
    ),
    "not-found": PlantedBug("an existing object is reported as not found", ("I-04",), writes.not_found),
    "forgotten-month": PlantedBug(
        "the cost of a month is lost when the month ends", ("I-22",), money.forgotten_month
    ),
    "half-price": PlantedBug("machines are charged at half their price", ("I-22",), money.half_price),
    "lost-write": PlantedBug("a change is acknowledged and not written", ("I-01",), writes.lost_write),
    "written-and-refused": PlantedBug(
        "a creation is written and reported as rejected", ("I-03",), writes.written_and_refused
    ),
    "stale-reads": PlantedBug("a read is answered from a stale cache", ("I-04",), writes.stale_reads),
    "foreign-node": PlantedBug(
        "a joining machine writes the node of another machine", ("I-38",), writes.foreign_node
    ),
    "trickling-status": PlantedBug(
        "every small change of spending is written", ("I-33",), money.trickling_status
    ),
    "given-up-after-conflict": PlantedBug(
        "a key is never requeued after a conflict", ("I-32",), writes.given_up_after_conflict
    ),
    "restless": PlantedBug("healthy replicas are replaced", ("I-25",), lifecycle.restless),
    "room-below-least": PlantedBug("needed replicas are preempted", ("I-28",), lifecycle.room_below_least),
    "same-again": PlantedBug("a conflicting write is repeated without a read", ("I-35",), writes.same_again),
    "forgotten-finalizer": PlantedBug(
        "a workload is deleted while a silent node may still run a copy",
        ("I-13",),
        lifecycle.forgotten_finalizer,
    ),
    "older-terms": PlantedBug("agents obey orders of an older term", ("I-19",), lifecycle.older_terms),
    "acts-before-it-is-told": PlantedBug(
        "a restarted agent acts on the orders of its previous process",
        ("I-19",),
        lifecycle.acts_before_it_is_told,
    ),
    "unheard-limit": PlantedBug(
        "a budget that is lowered during a charge is ignored", ("I-20",), money.unheard_limit
    ),
    "no-most-machines": PlantedBug("placement ignores maxNodes of pools", ("I-20",), money.no_most_machines),
    "no-rollout": PlantedBug("replicas of an older revision stay", ("I-32",), lifecycle.no_rollout),
    "no-back-off": PlantedBug("failed workloads restart without back-off", ("I-35",), lifecycle.no_back_off),
    "revision-twice": PlantedBug("two commits share one revision", ("I-05",), writes.revision_twice),
    "blind-put": PlantedBug("a put overwrites any stored value", ("I-01",), writes.blind_put),
    "mute": PlantedBug("an unschedulable workload gets no reason", ("I-34",), lifecycle.mute),
    "surplus-kept": PlantedBug("surplus replicas stay", ("I-32",), lifecycle.surplus_kept),
}
