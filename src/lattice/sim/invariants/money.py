"""Money: no commitment beyond a hard limit, spending that is price times time, prices as stated, no machine that nobody pays for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import inf

import msgspec

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, LedgerStatus
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.sim.invariants.context import CheckerContext, Findings
from lattice.sim.invariants.history import ObjectChange
from lattice.sim.world.store import CommitRecord

MONTH_HOURS = 720
MAX_PAST_MONTHS = 13  # that are over are kept
HOUR_US = 3_600_000_000  # microseconds
_decode_cluster = msgspec.json.Decoder(LatticeCluster).decode


def check_ledgers(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-20: no commitment beyond a hard limit. I-22: what is spent is price times time, to the last part."""
    for move in moves:
        if not isinstance(move.new, LatticeLedger):
            continue
        new, old = move.new.status, move.old.status if move.old is not None else None
        lots = sum(lot.count * lot.micros for each in new.machines.values() for lot in each)
        if lots != new.committed_micros:
            yield "I-22", f"{move.key.name} commits {new.committed_micros} and its machines cost {lots}"
        if old is not None:
            yield from _check_spending(move.key.name, old, new)
        yield from _check_prices(seen, record, move)
        named = move.new.spec.budget.name
        pool = next(
            (
                each.new
                for each in moves
                if each.key.name == named and each.key.resource.startswith("latticepools")
            ),
            None,
        )
        pool = pool or seen.snapshot.pools.get(f"/{named}")
        if (
            new.committed_micros > (old.committed_micros if old else 0)
            and pool is not None
            and pool.spec.budget is not None
        ):
            yield from _check_limit(
                move.new, int(Decimal(str(pool.spec.budget.max_monthly_cost)) * 1_000_000)
            )


def _check_spending(name: str, old: LedgerStatus, new: LedgerStatus) -> Findings:
    """Of each calendar month its own part: what is over is put away whole, and its rest is carried into the next."""
    at, until = _time(old.as_of), max(_time(old.as_of), _time(new.as_of))
    parts, past = old.spent_micros * HOUR_US + old.remainder, dict(old.past)
    while (ends := _month_end(at)) <= until:
        past[f"{at:%Y-%m}"], parts = divmod(parts + old.committed_micros * _micros(ends - at), HOUR_US)
        at = ends
    parts += old.committed_micros * _micros(until - at)
    if parts != new.spent_micros * HOUR_US + new.remainder:
        yield (
            "I-22",
            f"{name} has spent {new.spent_micros} in {new.month}, and price times time is {parts // HOUR_US}",
        )
    if dict(sorted(past.items())[-MAX_PAST_MONTHS:]) != new.past:
        yield "I-22", f"{name} says of the months before {new.past}, and price times time is {past}"


def _check_prices(seen: CheckerContext, record: CommitRecord, move: ObjectChange) -> Findings:
    """Machines are taken at the price that their class has, or had when whoever took them last heard of it."""
    known = _lots_by_price(move.old)
    for (cluster, kind, micros), count in _lots_by_price(move.new).items():
        if count <= known[cluster, kind, micros]:
            continue
        since, account = seen.unseen_since(record), move.new.spec.budget
        pools = (
            seen.snapshot.versions(LatticePool, f"/{account.name}", since)
            if account.kind == "LatticePool"
            else []
        )
        classes = seen.snapshot.versions(LatticeNodeClass, f"/{kind}", since)
        prices = {
            each.spec.cost_per_hour.get(pool.spec.provider.type) for each in classes for pool in pools
        } - {None}
        if prices and micros not in {int(Decimal(str(each)) * 1_000_000) for each in prices}:
            yield (
                "I-22",
                f"{move.key.name} pays {micros} an hour for {kind} in {cluster}, whose price is {', '.join(map(str, prices))}",
            )


def _lots_by_price(ledger: LatticeLedger | None) -> Counter[tuple[str, str, int]]:
    found: Counter[tuple[str, str, int]] = Counter()
    for cluster, lots in ledger.status.machines.items() if ledger else ():
        found.update({(cluster, each.node_class, each.micros): each.count for each in lots})
    return found


def check_machines_paid(seen: CheckerContext, record: CommitRecord) -> Findings:
    """I-22: there is no machine that nobody pays for. Asked of the state after the commit."""
    for cluster, kind, count in seen.world.cloud.machine_counts(record.at):
        ledgers = [each for each in seen.snapshot.ledgers.values() if cluster in each.status.machines]
        covered = min((_lots(each, cluster, kind) for each in ledgers), default=0)
        if count > covered:
            yield "I-22", f"{count} machines of class {kind} stand in {cluster}, and {covered} are paid for"


def check_machine_limits(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-20: nor beyond what a pool may have of machines, as it is, or was for all that whoever asked for them had been told.

    What the same writer wants no more a moment later does not count: what comes is written, and paid for, before what goes.
    """
    taken = [
        each
        for each in moves
        if isinstance(each.new, LatticeLedger) and _machines(each.new) > _machines(each.old)
    ]
    after = {
        **seen.snapshot.clusters,
        **{each.key.path: each.new for each in moves if each.key.resource == LatticeCluster.resource.id},
    }
    for name in sorted(
        {each.new.spec.budget.name for each in taken if each.new.spec.budget.kind == "LatticePool"}
    ):
        pools = seen.snapshot.versions(LatticePool, f"/{name}", seen.unseen_since(record))
        most = max(
            (inf if each.spec.capacity.max_nodes is None else each.spec.capacity.max_nodes for each in pools),
            default=inf,
        )
        count = _machines_in_pool(name, after.values())
        if count > most and min(_counts_after_next_commits(seen, record, name, after), default=count) > most:
            yield "I-20", f"{count} machines are wanted in {name}, which may have {most}"


def _machines_in_pool(name: str, clusters: Iterable[LatticeCluster | None]) -> int:
    return sum(_desired_nodes(each) for each in clusters if each is not None and each.spec.pool == name)


def _counts_after_next_commits(
    seen: CheckerContext, record: CommitRecord, pool: str, clusters: Mapping[str, LatticeCluster | None]
) -> Iterator[int]:
    now = dict(clusters)
    for each in seen.following_commits(record):
        changed = [change for change in each.changes if change.key.resource == LatticeCluster.resource.id]
        now |= {
            change.key.path: None if change.value is None else _decode_cluster(change.value)
            for change in changed
        }
        yield _machines_in_pool(pool, now.values())


def _machines(ledger: LatticeLedger | None) -> int:
    """Those that it pays for: that are wanted, or still there."""
    return sum(lot.count for lots in ledger.status.machines.values() for lot in lots) if ledger else 0


def _desired_nodes(cluster: LatticeCluster | None) -> int:
    return cluster.spec.desired_nodes if cluster else 0


def _check_limit(ledger: LatticeLedger, limit: int) -> Findings:
    status = ledger.status
    if status.committed_micros * MONTH_HOURS > limit:
        yield (
            "I-20",
            f"{ledger.metadata.name} commits {status.committed_micros} an hour, {MONTH_HOURS} of which are more than {limit}",
        )
    now = _time(status.as_of)
    due = (
        status.spent_micros * HOUR_US
        + status.remainder
        + status.committed_micros * _micros(_month_end(now) - now)
    )
    if due > limit * HOUR_US:
        yield (
            "I-20",
            f"{ledger.metadata.name} would have spent {due // HOUR_US} by the end of the month, and may spend {limit}",
        )


def _month_end(at: datetime) -> datetime:
    return datetime(at.year + at.month // 12, at.month % 12 + 1, 1, tzinfo=UTC)


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _lots(ledger: LatticeLedger, cluster: str, kind: str) -> int:
    return sum(lot.count for lot in ledger.status.machines.get(cluster, ()) if lot.node_class == kind)
