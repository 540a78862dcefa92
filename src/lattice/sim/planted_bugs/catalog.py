"""Catalog of planted bugs: the checker must find every bug that is planted in the real code."""

from collections.abc import Callable
from dataclasses import dataclass

from lattice.sim.planted_bugs import binding, lifecycle, money, purchases, writes


@dataclass(frozen=True)
class PlantedBug:
    """A bug. `violates` names the invariants that the bug breaks; `plant` patches the code."""

    description: str
    violates: tuple[str, ...]
    plant: Callable[[], None]


PLANTED_BUGS: dict[str, PlantedBug] = {
    "no-fence": PlantedBug("controllers write without a fence", ("I-09",), writes.no_fence),
    "fence-read-again": PlantedBug(
        "a controller reads the current term again before each write",
        ("I-08", "I-09"),
        writes.fence_read_again,
    ),
    "no-compare": PlantedBug("the store compares no revisions", ("I-11", "I-12", "I-22"), writes.no_compare),
    "blind-ledger": PlantedBug(
        "a controller writes a ledger without a revision check", ("I-20", "I-22"), money.blind_ledger
    ),
    "no-limit": PlantedBug("a hard limit rejects no charge", ("I-20",), money.no_limit),
    "float-money": PlantedBug("fractions of a micro-dollar are rounded away", ("I-22",), money.float_money),
    "unpaid-machines": PlantedBug(
        "machines are created and no ledger pays for them", ("I-22",), money.unpaid_machines
    ),
    "paid-back-too-early": PlantedBug(
        "the ledger stops paying before the machine is gone", ("I-22",), money.paid_back_too_early
    ),
    "removed-with-work": PlantedBug(
        "machines are deleted while workloads run on them", ("I-27",), money.removed_with_work
    ),
    "stop-before-switch": PlantedBug(
        "old replicas are stopped before new ones are ready", ("I-24",), lifecycle.stop_before_switch
    ),
    "drain-below-least": PlantedBug(
        "a drain evicts replicas below the minimum of the service", ("I-24",), lifecycle.drain_below_least
    ),
    "prepared-for-ever": PlantedBug(
        "reservations of a failed attempt never expire", ("I-16", "I-32"), binding.prepared_for_ever
    ),
    "wall-clock-lease": PlantedBug(
        "a lease is measured by the wall clock", ("I-10",), writes.wall_clock_lease
    ),
    "swallowed-gap": PlantedBug(
        "a watch ignores a gap in its changes", ("I-06", "I-32"), writes.swallowed_gap
    ),
    "missed-deletions": PlantedBug(
        "some deletions do not reach the caches", ("I-06", "I-32"), writes.missed_deletions
    ),
    "started-twice": PlantedBug(
        "an agent starts a workload that already runs", ("I-19",), lifecycle.started_twice
    ),
    "moved-too-soon": PlantedBug(
        "workloads of a silent node fail over as soon as the node is not ready",
        ("I-13",),
        lifecycle.moved_too_soon,
    ),
    "certain-too-soon": PlantedBug(
        'workloads whose disconnect policy is "stop" count as dead as soon as their silent node is not ready',
        ("I-13",),
        lifecycle.certain_too_soon,
    ),
    "certain-at-once": PlantedBug(
        'workloads whose disconnect policy is "stop" fail over before their copies must have stopped',
        ("I-13",),
        lifecycle.certain_at_once,
    ),
    "contact-too-late": PlantedBug(
        "an agent measures its time without contact from 12 s after the reply of the server",
        ("I-13",),
        lifecycle.contact_too_late,
    ),
    "twice-the-room": PlantedBug(
        "the scheduler counts nodes at twice their capacity", ("I-12",), binding.twice_the_room
    ),
    "no-ready-check": PlantedBug(
        "the scheduler ignores readiness and cordons of nodes", ("I-14",), binding.no_ready_check
    ),
    "no-taint-check": PlantedBug("the scheduler ignores taints", ("I-14",), binding.no_taint_check),
    "no-label-check": PlantedBug("the scheduler ignores labels of pools", ("I-14",), binding.no_label_check),
    "no-compliance-check": PlantedBug(
        "the scheduler ignores the compliance of pools", ("I-14",), binding.no_compliance_check
    ),
    "no-distance-check": PlantedBug(
        "the scheduler ignores anti-affinity between workloads", ("I-14",), binding.no_anti_affinity_check
    ),
    "no-spread-check": PlantedBug(
        "the scheduler ignores topology spread", ("I-14",), binding.no_spread_check
    ),
    "broken-gang": PlantedBug("the members of a gang are bound one by one", ("I-15",), binding.broken_gang),
    "no-lock": PlantedBug("a scheduler binds to nodes without their lock", ("I-17",), binding.no_lock),
    "any-lock": PlantedBug(
        "a scheduler uses the lock of another scheduler as its own", ("I-17",), binding.any_lock
    ),
    "bound-after-its-time": PlantedBug(
        "a scheduler binds an expired reservation", ("I-16",), binding.bound_after_its_time
    ),
    "unjust-room": PlantedBug(
        "preemption evicts workloads of equal priority", ("I-18",), binding.preempts_equal_priority
    ),
    "dropped-write": PlantedBug(
        "the server acknowledges a write with the previous revision and stores nothing",
        ("I-01",),
        writes.dropped_write,
    ),
    "not-found": PlantedBug(
        "the server answers a read of an existing object with NotFound", ("I-04",), writes.not_found
    ),
    "forgotten-month": PlantedBug(
        "the spending of an ended month is not recorded", ("I-22",), money.forgotten_month
    ),
    "half-price": PlantedBug("a ledger pays half of the machine price", ("I-22",), money.half_price),
    "lost-write": PlantedBug(
        "the server acknowledges a write and never stores it", ("I-01",), writes.lost_write
    ),
    "written-and-refused": PlantedBug(
        "the server stores a new object and answers with a conflict", ("I-03",), writes.written_and_refused
    ),
    "stale-reads": PlantedBug(
        "the server answers reads from an outdated copy", ("I-04",), writes.stale_reads
    ),
    "foreign-node": PlantedBug(
        "a joining machine writes the node of another machine", ("I-38",), writes.foreign_node
    ),
    "trickling-status": PlantedBug(
        "every small change of the spending is written to a status", ("I-33",), money.trickling_status
    ),
    "given-up-after-conflict": PlantedBug(
        "a controller never retries a key after a conflict", ("I-32",), writes.given_up_after_conflict
    ),
    "restless": PlantedBug("the controller replaces healthy replicas", ("I-25",), lifecycle.restless),
    "room-below-least": PlantedBug(
        "preemption evicts replicas below the minimum of their service", ("I-28",), lifecycle.room_below_least
    ),
    "same-again": PlantedBug(
        "a controller repeats a rejected commit without a new read", ("I-35",), writes.same_again
    ),
    "forgotten-finalizer": PlantedBug(
        "a workload object is deleted while a silent node may still run the workload",
        ("I-13",),
        lifecycle.forgotten_finalizer,
    ),
    "older-terms": PlantedBug(
        "assignments of an older term reach agents, and the agents obey them",
        ("I-19",),
        lifecycle.older_terms,
    ),
    "acts-before-it-is-told": PlantedBug(
        "a restarted agent acts on the assignments of the previous agent process",
        ("I-19",),
        lifecycle.acts_before_assignments,
    ),
    "unheard-limit": PlantedBug(
        "a commit of machines ignores a concurrent reduction of the budget", ("I-20",), money.unheard_limit
    ),
    "no-most-machines": PlantedBug("a pool has no limit of machines", ("I-20",), money.no_most_machines),
    "no-rollout": PlantedBug("replicas of an older revision stay", ("I-32",), lifecycle.no_rollout),
    "no-back-off": PlantedBug(
        "a failed workload is started again without back-off", ("I-35",), lifecycle.no_back_off
    ),
    "revision-twice": PlantedBug("two commits have the same revision", ("I-05",), writes.revision_twice),
    "blind-put": PlantedBug(
        "a PUT replaces the stored object whatever the expected revision", ("I-01",), writes.blind_put
    ),
    "mute": PlantedBug("an unschedulable workload gets no reason", ("I-34",), lifecycle.mute),
    "surplus-kept": PlantedBug("surplus replicas are not stopped", ("I-32",), lifecycle.surplus_kept),
    "bought-while-coming": PlantedBug(
        "remediation ignores the machines that are being created",
        ("I-42",),
        purchases.buys_while_one_is_coming,
    ),
    "machine-per-replica": PlantedBug(
        "remediation buys a machine for every waiting replica", ("I-42",), purchases.machine_per_replica
    ),
    "surge-machine-kept": PlantedBug(
        "machines that were needed for a moment stay", ("I-42",), purchases.surge_machine_kept
    ),
    "wrong-lot": PlantedBug(
        "a ledger releases a machine of another class", ("I-22", "I-43"), purchases.wrong_lot_released
    ),
    "refunded-twice": PlantedBug(
        "a ledger releases the charge of a removed machine twice", ("I-22",), purchases.refunded_twice
    ),
    "never-refunded": PlantedBug(
        "a ledger pays for machines that are gone", ("I-43",), purchases.never_refunded
    ),
    "first-price": PlantedBug(
        "machines are charged at the first price of their class", ("I-22",), purchases.first_price_for_ever
    ),
    "headroom-of-the-lowest-price": PlantedBug(
        "the headroom of a budget counts machines at the lowest price of their class",
        ("I-20",),
        purchases.headroom_from_lowest_price,
    ),
    "unknown-price-is-free": PlantedBug(
        "a class without a price costs nothing", ("I-20",), purchases.unknown_price_is_free
    ),
    "budget-never-exceeded": PlantedBug(
        "the condition BudgetExceeded is never True", ("I-43",), purchases.budget_never_exceeded
    ),
    "first-cost-shown": PlantedBug(
        "the status of a cluster shows its first cost", ("I-43",), purchases.first_cost_shown
    ),
    "promise-believed": PlantedBug(
        "placement ignores what real machines offer", ("I-41",), purchases.promise_believed
    ),
    "report-forgotten": PlantedBug(
        "what machines offered is forgotten with them", ("I-41",), purchases.report_forgotten
    ),
    "repriced-without-accruing": PlantedBug(
        "a new price also counts for the time before", ("I-22",), purchases.repriced_without_accruing
    ),
    "price-rise-refused": PlantedBug(
        "ledgers ignore prices that rise", ("I-43",), purchases.price_rise_refused
    ),
}
