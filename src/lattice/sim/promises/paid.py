"""Money: no commitment beyond a hard limit, spending that is price times time, and no machine that nobody pays for."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lattice.kinds.ledger import LatticeLedger
from lattice.sim.past import Move
from lattice.sim.promises.seen import Found, Seen
from lattice.sim.stores import Record

MONTH_HOURS = 720
HOUR = 3_600_000_000  # microseconds


def money(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-20: no commitment beyond a hard limit. I-22: what is spent is price times time, to the last part."""
    for move in moves:
        if not isinstance(move.new, LatticeLedger):
            continue
        new, old = move.new.status, move.old.status if move.old is not None else None
        lots = sum(lot.count * lot.micros for each in new.machines.values() for lot in each)
        if lots != new.committed_micros:
            yield "I-22", f"{move.key.name} commits {new.committed_micros} and its machines cost {lots}"
        if old is not None and old.month == new.month:
            passed = max(0, _micros(_time(new.as_of) - _time(old.as_of)))
            due = old.spent_micros * HOUR + old.remainder + old.committed_micros * passed
            if due != new.spent_micros * HOUR + new.remainder:
                yield "I-22", f"{move.key.name} has spent {new.spent_micros}, and price times time is {due // HOUR}"
        named = move.new.spec.budget.name
        pool = next((each.new for each in moves if each.key.name == named and each.key.resource.startswith("latticepools")), None)
        pool = pool or seen.snap.pools.get(f"/{named}")
        if new.committed_micros > (old.committed_micros if old else 0) and pool is not None and pool.spec.budget is not None:
            yield from _over(move.new, int(Decimal(str(pool.spec.budget.max_monthly_cost)) * 1_000_000))


def paid(seen: Seen, record: Record) -> Found:
    """I-22: there is no machine that nobody pays for. Asked of the state after the commit."""
    for cluster, kind, count in seen.world.cloud.standing(record.at):
        ledgers = [each for each in seen.snap.ledgers.values() if cluster in each.status.machines]
        covered = min((_lots(each, cluster, kind) for each in ledgers), default=0)
        if count > covered:
            yield "I-22", f"{count} machines of class {kind} stand in {cluster}, and {covered} are paid for"


def _over(ledger: LatticeLedger, limit: int) -> Found:
    status = ledger.status
    if status.committed_micros * MONTH_HOURS > limit:
        yield "I-20", f"{ledger.metadata.name} commits {status.committed_micros} an hour, {MONTH_HOURS} of which are more than {limit}"
    now = _time(status.as_of)
    ends = datetime(now.year + now.month // 12, now.month % 12 + 1, 1, tzinfo=UTC)
    due = status.spent_micros * HOUR + status.remainder + status.committed_micros * _micros(ends - now)
    if due > limit * HOUR:
        yield "I-20", f"{ledger.metadata.name} would have spent {due // HOUR} by the end of the month, and may spend {limit}"


def _micros(span: timedelta) -> int:
    return span // timedelta(microseconds=1)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _lots(ledger: LatticeLedger, cluster: str, kind: str) -> int:
    return sum(lot.count for lot in ledger.status.machines.get(cluster, ()) if lot.node_class == kind)
