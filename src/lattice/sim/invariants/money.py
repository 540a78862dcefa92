"""Invariants of money: commitments stay within hard limits, spending is price times time, new machines cost
the price of their class, and every machine is paid for."""

from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain, product
from math import inf

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, LedgerStatus, Lot
from lattice.kinds.meta.timestamps import parse_timestamp
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.sim.invariants.context import CheckerContext, Findings
from lattice.sim.invariants.history import ObjectChange
from lattice.sim.world.store import CommitRecord

MONTH_HOURS = 720
# Number of ended months that a ledger keeps.
MAX_PAST_MONTHS = 13
HOUR_US = 3_600_000_000  # microseconds
# Longest time between counting the spending of a ledger and sending the commit.
MAX_COUNTING_LAG = timedelta(seconds=2)
_decode_cluster = msgspec.json.Decoder(LatticeCluster).decode


def check_ledgers(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-20: commitments stay within a hard limit. I-22: spending is price times time, exact to the fraction of a
    micro-dollar that the ledger keeps as `remainder`."""
    for change in changes:
        if not isinstance(change.new, LatticeLedger):
            continue
        new, old = change.new.status, change.old.status if change.old is not None else None
        cost = sum(lot.count * lot.micros for lot in _lots(change.new))
        if cost != new.committed_micros:
            yield (
                "I-22",
                (
                    f"{change.key.name} records a committed rate of {new.committed_micros}"
                    f" micro-dollars per hour, but its machines cost {cost}"
                ),
            )
        if old is not None:
            yield from _check_spending(change.key.name, old, new)
            yield from _check_moment(change.key.name, record, old, new)
        yield from _check_prices(context, record, change)
        pool_name = change.new.spec.budget.name
        pool = next(
            (
                pool_change.new
                for pool_change in changes
                if pool_change.key.name == pool_name and pool_change.key.resource == LatticePool.resource.id
            ),
            None,
        )
        # A budget changed in the same commit counts with its new limit.
        pool = pool or context.snapshot.pools.get(f"/{pool_name}")
        # Only purchases are checked: a limit that is lowered below the commitment, or a price that rises, takes
        # no machine away.
        if _bought_rate(change.old, change.new) > 0 and pool is not None and pool.spec.budget is not None:
            yield from _check_limit(
                change.new, int(Decimal(str(pool.spec.budget.max_monthly_cost)) * 1_000_000)
            )


def _bought_rate(old: LatticeLedger | None, new: LatticeLedger) -> int:
    """Micro-dollars per hour of the machines that the commit added, after those that it released. A commit that
    only re-prices machines adds none."""
    old_lots, new_lots = _lots_by_class(old), _lots_by_class(new)
    bought = 0
    for group in {*old_lots, *new_lots}:
        (old_count, _), (new_count, price) = old_lots.get(group, (0, 0)), new_lots.get(group, (0, 0))
        added = new_count - old_count
        bought += added * (price if added > 0 else old_lots.get(group, (0, 0))[1])
    return bought


def _lots_by_class(ledger: LatticeLedger | None) -> dict[tuple[str, str], tuple[int, int]]:
    """The number of machines and the highest price by cluster and class."""
    groups: dict[tuple[str, str], tuple[int, int]] = {}
    for cluster, lots in ledger.status.machines.items() if ledger else ():
        for lot in lots:
            count, price = groups.get((cluster, lot.node_class), (0, 0))
            groups[cluster, lot.node_class] = (count + lot.count, max(price, lot.micros))
    return groups


def _check_spending(name: str, old: LedgerStatus, new: LedgerStatus) -> Findings:
    """Compare the ledger's spending with price times time, per calendar month; the fraction of a micro-dollar
    left at the end of a month carries over to the next month."""
    at, until = parse_timestamp(old.as_of), max(parse_timestamp(old.as_of), parse_timestamp(new.as_of))
    spent_parts, past = old.spent_micros * HOUR_US + old.remainder, dict(old.past)
    # Every ended month is recorded; the fraction of a micro-dollar that is left carries over.
    while (month_end := _month_end(at)) <= until:
        past[f"{at:%Y-%m}"], spent_parts = divmod(
            spent_parts + old.committed_micros * _microseconds(month_end - at), HOUR_US
        )
        at = month_end
    spent_parts += old.committed_micros * _microseconds(until - at)
    if spent_parts != new.spent_micros * HOUR_US + new.remainder:
        yield (
            "I-22",
            f"{name} records {new.spent_micros} spent in {new.month}, but price times time is {spent_parts // HOUR_US}",
        )
    if dict(sorted(past.items())[-MAX_PAST_MONTHS:]) != new.past:
        yield "I-22", f"{name} records {new.past} for earlier months, but price times time is {past}"


def _check_moment(name: str, record: CommitRecord, old: LedgerStatus, new: LedgerStatus) -> Findings:
    """A commit that changes the rate counts the time until then at the previous rate: the spending is counted up to
    the moment of the commit by the wall clock of the writer, or further if that clock was set back."""
    if new.committed_micros == old.committed_micros or record.writer_time is None:
        return
    counted_until = parse_timestamp(new.as_of)
    if max(parse_timestamp(old.as_of), record.writer_time - MAX_COUNTING_LAG) > counted_until:
        yield (
            "I-22",
            (
                f"{name} has another rate since {record.writer_time:%H:%M:%S}, but its spending is counted until"
                f" {counted_until:%H:%M:%S} only: the time between counts at the new rate"
            ),
        )


def _check_prices(context: CheckerContext, record: CommitRecord, change: ObjectChange) -> Findings:
    """I-22: a ledger pays for a machine the price of the class, or a price that the writer may have known."""
    old_counts = _lots_by_price(change.old)
    for (cluster, kind, micros), count in _lots_by_price(change.new).items():
        # Machines at the price of before are re-priced later.
        if count <= old_counts[cluster, kind, micros]:
            continue
        since, account = context.unseen_since(record), change.new.spec.budget
        pools = (
            context.snapshot.versions(LatticePool, f"/{account.name}", since)
            if account.kind == "LatticePool"
            else []
        )
        classes = context.snapshot.versions(LatticeNodeClass, f"/{kind}", since)
        prices = {
            node_class.spec.cost_per_hour.get(pool.spec.provider.type)
            for node_class, pool in product(classes, pools)
        } - {None}
        if classes and pools and not prices and all(pool.spec.budget for pool in pools):
            yield "I-20", f"{change.key.name} pays for {kind} in {cluster}, whose price is unknown"
        if prices and micros not in {int(Decimal(str(price)) * 1_000_000) for price in prices}:
            yield (
                "I-22",
                (
                    f"{change.key.name} pays {micros} micro-dollars per hour for {kind} in {cluster},"
                    f" whose price is {', '.join(map(str, prices))}"
                ),
            )


def _lots_by_price(ledger: LatticeLedger | None) -> Counter[tuple[str, str, int]]:
    counts: Counter[tuple[str, str, int]] = Counter()
    for cluster, lots in ledger.status.machines.items() if ledger else ():
        counts.update({(cluster, lot.node_class, lot.micros): lot.count for lot in lots})
    return counts


def check_machines_paid(context: CheckerContext, record: CommitRecord) -> Findings:
    """I-22: a ledger pays for every machine. `context` holds the state after the commit."""
    for cluster, kind, count in context.world.cloud.machine_counts(record.at):
        ledgers = [
            ledger for ledger in context.snapshot.ledgers.values() if cluster in ledger.status.machines
        ]
        # Every ledger that pays for the cluster must cover the machines.
        covered = min(
            (
                sum(lot.count for lot in ledger.status.machines.get(cluster, ()) if lot.node_class == kind)
                for ledger in ledgers
            ),
            default=0,
        )
        if count > covered:
            yield "I-22", f"{count} machines of class {kind} exist in {cluster}, but only {covered} are paid"


def check_machine_limits(
    context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]
) -> Findings:
    """I-20: a pool has no more machines than the largest `maxNodes` that the writer may have read.

    A machine that the same writer removes within MAX_DECISION_S does not count, because the writer adds and
    pays for new machines before it removes old machines.
    """
    grown = [
        change
        for change in changes
        if isinstance(change.new, LatticeLedger) and _machine_count(change.new) > _machine_count(change.old)
    ]
    next_clusters = {
        **context.snapshot.clusters,
        **{
            change.key.path: change.new
            for change in changes
            if change.key.resource == LatticeCluster.resource.id
        },
    }
    names = {change.new.spec.budget.name for change in grown if change.new.spec.budget.kind == "LatticePool"}
    for name in sorted(names):
        pools = context.snapshot.versions(LatticePool, f"/{name}", context.unseen_since(record))
        limit = max(
            (inf if pool.spec.capacity.max_nodes is None else pool.spec.capacity.max_nodes for pool in pools),
            default=inf,
        )
        count = _machines_in_pool(name, next_clusters.values())
        if count <= limit:
            continue
        clusters: dict[str, LatticeCluster | None] = dict(next_clusters)
        for commit in context.following_commits(record):
            for stored in commit.changes:
                if stored.key.resource == LatticeCluster.resource.id:
                    cluster = None if stored.value is None else _decode_cluster(stored.value)
                    clusters[stored.key.path] = cluster
            if _machines_in_pool(name, clusters.values()) <= limit:
                break
        else:
            yield "I-20", f"{count} machines are desired in {name}, whose maximum is {limit}"


def _machines_in_pool(name: str, clusters: Iterable[LatticeCluster | None]) -> int:
    return sum(
        cluster.spec.desired_nodes
        for cluster in clusters
        if cluster is not None and cluster.spec.pool == name
    )


def _lots(ledger: LatticeLedger) -> Iterator[Lot]:
    return chain.from_iterable(ledger.status.machines.values())


def _machine_count(ledger: LatticeLedger | None) -> int:
    """Machines that the ledger pays for: desired machines and machines that still exist."""
    return sum(lot.count for lot in _lots(ledger)) if ledger else 0


def _check_limit(ledger: LatticeLedger, limit: int) -> Findings:
    status = ledger.status
    # Two limits: 30 days at the committed rate, and this calendar month with the amount spent so far.
    if status.committed_micros * MONTH_HOURS > limit:
        yield (
            "I-20",
            (
                f"{ledger.metadata.name} records a committed rate of {status.committed_micros}"
                f" micro-dollars per hour, which exceeds the limit {limit} in {MONTH_HOURS} hours"
            ),
        )
    due = _projected_parts(status)
    if due > limit * HOUR_US:
        yield (
            "I-20",
            (
                f"{ledger.metadata.name} would have spent {due // HOUR_US} by the end of the month,"
                f" but the limit is {limit}"
            ),
        )


def _projected_parts(status: LedgerStatus) -> int:
    now = parse_timestamp(status.as_of)
    until_month_end = status.committed_micros * _microseconds(_month_end(now) - now)
    return status.spent_micros * HOUR_US + status.remainder + until_month_end


def projected_micros(status: LedgerStatus) -> int:
    """Micro-dollars that the ledger will have spent at the end of its month."""
    return _projected_parts(status) // HOUR_US


def _month_end(at: datetime) -> datetime:
    return datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)


def _microseconds(duration: timedelta) -> int:
    return duration // timedelta(microseconds=1)
