"""What ends, and when: silent nodes, copies that must be alone, replicas that are needed, nodes that are removed."""

from bisect import bisect_right
from collections import defaultdict
from itertools import pairwise
from math import inf

from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.table.node_info import DRAINING_TAINT
from lattice.sim.invariants.history import Life, Move, is_on_former, lives, node_of, path_of
from lattice.sim.invariants.context import (
    CONTROLLERS,
    STALE,
    Found,
    Seen,
    is_preempted,
    is_ready,
    workload_moves,
)
from lattice.sim.world.settings import KILLING, REPLACED, SKEW, TIMES
from lattice.sim.world.store import Record

REMOVING = 12.0  # seconds that a provider may take to remove a machine


def silence(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-13: what ran on a silent node is bound anew only when the time is up: since it was heard, and since this leader was elected."""
    for move in workload_moves(moves):
        node = (
            seen.snap.nodes.get(f"/{node_of(move.old)}")
            if node_of(move.old) and not node_of(move.new)
            else None
        )
        if (
            node is None
            or move.new is None
            or is_ready(node)
            or node.metadata.uid != move.old.status.binding.uid
        ):
            continue
        policy = move.old.spec.disconnect
        certain = (
            (policy.stop_after_ms / 1000 + KILLING) * (1 + SKEW) ** 2 if policy.policy == "stop" else 0.0
        )
        least = max(REPLACED, certain) / seen.rate(record)
        quiet = record.at - max(seen.last_heard.get(node.metadata.name, -inf), seen.elected_at(record))
        if quiet < least and not _says_that_it_is_gone(seen, record, move.old):
            words = f"{move.key.path} was taken from {node.metadata.name} {quiet:.1f} s after that was heard"
            yield "I-13", f"{words} or the leader elected, before {least:.1f} s"


def _says_that_it_is_gone(seen: Seen, record: Record, workload: LatticeWorkload) -> bool:
    """Its node speaks again, to this leader, which has not written yet that it is ready; and there is indeed no copy there."""
    name, at = node_of(workload), record.at
    heard = seen.last_heard.get(name, -inf)
    if heard < seen.elected_at(record) or at - heard >= TIMES.nodes.not_ready_after / seen.rate(record):
        return False
    there = [each for each in (*seen.world.gone, *seen.world.machines.values()) if each.name == name]
    copies = [life for machine in there for life in lives(machine) if life.which.uid == workload.metadata.uid]
    return not any(life.start <= at < life.end for life in copies)


def ground(seen: Seen) -> Found:
    """I-13: a strict single copy never runs twice, and ends in time when its node is cut off. I-19: a node runs a workload once.

    One that is deleted and made again is the same by its name, though its copies are of another uid.
    """
    by_name: dict[str, list[Life]] = defaultdict(list)
    contacts: dict[str, list[float]] = defaultdict(list)
    for at, node in sorted([*seen.world.heard, *seen.world.greeted]):
        contacts[node].append(at)
    for machine in [*seen.world.gone, *seen.world.machines.values()]:
        for life in lives(machine):
            by_name[life.spec.workload].append(life)
            yield from _lonely(life, contacts[life.node], min(life.end, seen.world.loop.time()))
    for every in by_name.values():
        every.sort(key=lambda life: life.start)
        for index, life in enumerate(every):
            for other in every[index + 1 :]:
                if other.start >= life.end or other.which.container != life.which.container:
                    continue
                words = f"{life.spec.workload} ran on {life.node} from {life.start:.2f} to {life.end:.2f} s"
                if other.node == life.node:
                    yield "I-19", f"{words}, and once more there from {other.start:.2f} s"
                elif life.spec.stop_after is not None:
                    yield "I-13", f"{words}, and on {other.node} from {other.start:.2f} s"


def _lonely(life: Life, contacts: list[float], end: float) -> Found:
    if life.spec.stop_after is None:
        return
    allowed = (life.spec.stop_after + KILLING) * (1 + SKEW)
    index = bisect_right(contacts, life.start)
    known = [
        contacts[index - 1] if index else life.start,
        *contacts[index : bisect_right(contacts, end)],
        end,
    ]
    for heard, following in pairwise(known):
        if following > heard + allowed:
            words = f"{life.spec.workload} ran on {life.node} until {end:.2f} s, which nobody had heard since {heard:.2f} s"
            yield "I-13", f"{words}: it was to end by itself after {life.spec.stop_after:g} s"
            return


def disruption(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-24: nobody who is needed is stopped by choice. I-28: nor told to make room."""
    if record.origin != CONTROLLERS:
        return
    gone: set[str] = set()
    for move in workload_moves(moves):
        is_stopped, is_told = _is_stopped_by_choice(move), _is_told_to_make_room(move)
        if not (is_stopped or is_told) or not move.old.status.ready or _is_expelled(seen, record, move.old):
            continue
        gone.add(move.key.path)
        key = f"{move.key.namespace}/{move.old.spec.service}"
        service = seen.snap.services.get(key)
        if (
            service is None
            or service.metadata.deletion_timestamp
            or not _owned(move.old, service.metadata.uid)
        ):
            continue
        since = seen.since(record)
        others = [
            each
            for each in seen.snap.replicas(key)
            if path_of(each) not in gone and _was_there(seen, each, since)
        ]
        least = seen.snap.least_wanted(key, since)
        if len(others) < least:
            number, what = ("I-24", "stopped") if is_stopped else ("I-28", "told to make room")
            yield (
                number,
                f"{move.key.path} was {what} while it was needed: {len(others)} others are ready and {least} are wanted",
            )


def _is_expelled(seen: Seen, record: Record, workload: LatticeWorkload) -> bool:
    """A person does not want it on its node any longer, whether it is needed or not."""
    nodes = seen.snap.versions(LatticeNode, f"/{node_of(workload)}", seen.since(record))
    taints = [
        taint
        for node in nodes
        for taint in node.spec.taints
        if taint.effect == "NoExecute" and taint.key != DRAINING_TAINT
    ]
    return not all(
        any(each.tolerates(taint) for each in workload.spec.constraints.tolerations) for taint in taints
    )


def replacement(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-25: nobody is replaced who is as he should be: until moves exist, other prices, supply or policies move no healthy replica."""
    for move in workload_moves(moves):
        key = (
            f"{move.key.namespace}/{move.new.spec.service}"
            if move.old is None and move.new.spec.service
            else ""
        )
        service = seen.snap.services.get(key)
        if record.origin != CONTROLLERS or service is None or service.metadata.deletion_timestamp:
            continue
        since = seen.since(record)
        live = [each for each in seen.snap.replicas(key) if not each.metadata.deletion_timestamp]
        if len(live) >= service.spec.wanted() > 0 and all(_is_fine(seen, each, since) for each in live):
            yield (
                "I-25",
                f"{move.key.path} was made though the {len(live)} that {key} wants are ready, as asked, and on nodes that stay",
            )


def _is_fine(seen: Seen, workload: LatticeWorkload, since: float) -> bool:
    """Ready, on a node that stays, and made since what is asked of its service last changed; all of that for a while."""
    path, where = path_of(workload), f"/{node_of(workload)}"
    node = seen.snap.nodes.get(where)
    if (
        node is None
        or not is_ready(node)
        or seen.snap.marked_at.get(where, -inf) >= since
        or _is_to_leave(node)
    ):
        return False
    stated = seen.snap.stated_at.get(f"{workload.metadata.namespace}/{workload.spec.service}", 0.0)
    is_steady = bool(workload.status.ready) and seen.snap.missed_at.get(path, -inf) < since
    return is_steady and not is_preempted(workload) and stated < seen.snap.made_at.get(path, 0.0) - STALE


def _is_to_leave(node: LatticeNode) -> bool:
    return bool(node.spec.unschedulable or node.spec.taints or node.metadata.deletion_timestamp)


def _was_there(seen: Seen, workload: LatticeWorkload, since: float) -> bool:
    """Ready and to stay, or it was when whoever decided last heard of it."""
    path = path_of(workload)
    if workload.metadata.deletion_timestamp or is_preempted(workload):
        return False
    return bool(workload.status.ready) or seen.snap.ready_at.get(path, -inf) >= since


def removal(seen: Seen, record: Record, moves: list[Move]) -> Found:
    """I-27: a machine's node is deleted only when nothing is bound or prepared there, unless the machine itself is gone.

    From a node that is silent goes by itself only what is to run: what is to end ends with the machine, which takes a while to remove.
    """
    for move in moves:
        if isinstance(move.old, LatticeNode) and move.new is None and move.old.spec.cluster:
            there = [each for each in seen.snap.on(move.key.name) if not is_on_former(each, move.old)]
            was_silent = not all(
                map(is_ready, seen.snap.versions(LatticeNode, move.key.path, record.at - REMOVING))
            )
            left = [path_of(each) for each in there if not was_silent or not _is_to_end(each)]
            if left and not seen.world.cloud.was_lost(move.key.name, record.at):
                yield "I-27", f"node {move.key.name} was deleted with {', '.join(left)} on it"


def _is_to_end(workload: LatticeWorkload) -> bool:
    """Somebody wants that, or it has failed for good."""
    retry, spec = workload.status.retry, workload.spec
    has_failed = retry is not None and retry.revision == spec.runs and retry.is_over
    return bool(workload.metadata.deletion_timestamp) or spec.desired_state != "Running" or has_failed


def _is_stopped_by_choice(move: Move) -> bool:
    """Marked for removal, or told to leave its node while it is wanted, whichever is first; not one that makes room for somebody more
    important."""
    old, new = move.old, move.new
    if (
        old is None
        or new is None
        or is_preempted(old)
        or old.metadata.deletion_timestamp
        or not old.spec.service
    ):
        return False
    was_told = old.status.last_action == "ApplyStopped" and old.spec.desired_state == "Running"
    is_told = new.status.last_action == "ApplyStopped" and new.spec.desired_state == "Running"
    return not was_told and (bool(new.metadata.deletion_timestamp) or is_told)


def _is_told_to_make_room(move: Move) -> bool:
    old, new = move.old, move.new
    return (
        old is not None
        and new is not None
        and bool(old.spec.service)
        and is_preempted(new)
        and not is_preempted(old)
    )


def _owned(workload: LatticeWorkload, uid: str) -> bool:
    return any(each.uid == uid for each in workload.metadata.owner_references)
