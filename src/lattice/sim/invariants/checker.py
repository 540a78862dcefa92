"""Checker: replays a recorded run and reports violations of invariants by number.

The checker reads the history of the store, the replies to clients and the instances that ran, and never asks
the code under test. Checks of the store, of leadership and of the final state are here; checks of binding,
lifecycle, placement and money are in sibling modules.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, pairwise
from math import inf
from typing import Any, ClassVar, NamedTuple

import msgspec

from lattice.kinds.meta.base import path_of
from lattice.kinds.meta.conditions import find_condition, find_false
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import PLACED_CONDITION, PROGRESSING_CONDITION, LatticeService
from lattice.kinds.workload import SCHEDULED_CONDITION, LatticeWorkload, service_path
from lattice.scheduling.cycle.reservation_record import reservation_record
from lattice.server.agents.join import node_key
from lattice.sim.invariants import agents, binding, lifecycle, money, placement, purchases
from lattice.sim.invariants.context import CONTROLLERS, CheckerContext, Findings
from lattice.sim.invariants.history import (
    InstanceRun,
    ObjectChange,
    instance_runs,
    is_being_deleted,
    node_of,
    operation_in,
    reserved_node,
)
from lattice.sim.world.recording_client import OperationRecord
from lattice.sim.world.run import Run, cache_difference
from lattice.sim.world.store import CommitRecord
from lattice.store.protocol import Key

# Length of the last part of a run, in which no component may write (I-33). It starts 80 s after capacity was
# added; by then every desired workload runs.
QUIET_PERIOD_S = 60.0
# Limit of consecutive rejections of one commit, for a writer that had received the conflicting revision.
MAX_INFORMED_REJECTIONS = 5
# Limit of consecutive rejections of one commit, for a writer whose watch is behind.
MAX_REJECTIONS = 60
LEADER_DISRUPTING_FAULTS = frozenset(
    {
        "crash",
        "kill server",
        "pause server",
        "stop server",
        "cut store",
        "cut one way",
        "store away",
        "loss",
        "slow",
        "clock rate",
    }
)


class Violation(NamedTuple):
    invariant: str
    message: str
    at: float
    revision: int = 0


@dataclass
class Checker:
    """Checks a finished run; `check` returns the violations in the order of the history."""

    run: Run
    violations: list[Violation] = field(default_factory=list)
    # Longest delay with which a write may appear in the history.
    observation_delay_s: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        self.world = self.run.world
        self.context = CheckerContext(self.run)
        self.snapshot = self.context.snapshot
        self.last_revision = 0
        # By term: the server that wrote in the term.
        self.writers_by_term: dict[int, str] = {}
        # By operation of a client: the first revision that contains the operation.
        self.operation_revisions: dict[str, int] = {}
        context_checks = (
            binding.check_bindings,
            binding.check_gangs,
            binding.check_binding_modes,
            binding.check_preemption,
            placement.check_placement,
            money.check_ledgers,
            money.check_machine_limits,
            purchases.check_budget_condition,
            lifecycle.check_silent_nodes,
            lifecycle.check_disruption,
            lifecycle.check_replacement,
            lifecycle.check_node_removal,
        )
        self.commit_checks: list[Callable[[CommitRecord, list[ObjectChange]], Findings]] = [
            self.check_revisions,
            self.check_leadership,
            *(partial(check, self.context) for check in context_checks),
            purchases.PurchaseChecks(self.context).check,
            self.check_join_scope,
        ]

    def check(self) -> list[Violation]:
        # I-00 is no invariant of the list: the run itself failed.
        if self.run.error:
            self.violations.append(
                Violation("I-00", f"the run failed: {self.run.error}", self.world.loop.time())
            )
        self.violations += [
            Violation("I-00", f"unhandled error: {error}", self.world.loop.time())
            for error in self.world.loop.unhandled_errors[:3]
        ]
        for record in self.world.store.history:
            self.context.replay_heartbeats(record.at)
            changes = self.snapshot.changes_in(record)
            for check in self.commit_checks:
                self.violations += [
                    Violation(number, words, record.at, record.revision)
                    for number, words in check(record, changes)
                ]
            # The checks above need the state before the commit; the check for unpaid machines needs the state
            # after it.
            self.snapshot.apply(changes, record.at)
            self.violations += [
                Violation(number, words, record.at, record.revision)
                for number, words in money.check_machines_paid(self.context, record)
            ]
        for final_check in (
            self.check_clients,
            self.check_elections,
            self.check_instances,
            self.check_agents,
            self.check_caches,
            self.check_final_state,
            self.check_book,
            self.check_rejections,
        ):
            self.violations += [
                Violation(number, words, self.world.loop.time()) for number, words in final_check()
            ]
        return self.violations

    def check_instances(self) -> Findings:
        return lifecycle.check_instances(self.context)

    def check_book(self) -> Findings:
        return purchases.check_final_book(self.context)

    def check_agents(self) -> Findings:
        yield from agents.check_assignments_obeyed(self.context)
        yield from agents.check_restart_backoff(self.context)

    def check_revisions(self, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
        """I-05: revisions grow. I-01: a writer overwrites only revisions that the writer has read."""
        # Commits without an actor belong to the setup of the world.
        if record.blind_writes and record.actor:
            yield (
                "I-01",
                (
                    f"{record.actor} overwrote {', '.join(map(str, record.blind_writes[:3]))}"
                    " without reading the stored value"
                ),
            )
        if record.revision <= self.last_revision:
            yield "I-05", f"revision {record.revision} after {self.last_revision}"
        self.last_revision = record.revision
        for change in changes:
            if change.raw is not None and (operation := operation_in(change.raw)):
                self.operation_revisions.setdefault(operation, record.revision)

    def check_clients(self) -> Findings:
        """I-01: acknowledged writes are stored. I-03: rejected writes are not stored. I-04: a later read
        returns no older revision."""
        written: dict[Any, list[tuple[int, float, bytes | None]]] = defaultdict(list)
        for record in self.world.store.history:
            for change in record.changes:
                written[change.key].append((record.revision, record.at, change.value))
        for operation in self.world.operations:
            entries = written.get(operation.key, [])
            # A reply may show the last version before the request, or any version during the request.
            before = [entry for entry in entries if entry[1] < operation.started_at][-1:]
            during = [
                entry
                for entry in entries
                if operation.started_at <= entry[1] <= operation.finished_at + self.observation_delay_s
            ]
            request = f"{operation.method} {operation.key} by {operation.operation}"
            if operation.outcome == "refused" and operation.operation in self.operation_revisions:
                yield (
                    "I-03",
                    (
                        f"{request} was rejected ({operation.error[:80]})"
                        f" but written at revision {self.operation_revisions[operation.operation]}"
                    ),
                )
            # An object that was deleted during the request explains the answer "not found".
            if (
                operation.was_not_found
                and operation.method != "POST"
                and any(entry[2] for entry in before)
                and all(entry[2] for entry in during)
            ):
                yield "I-04", f"{request} returned not found although revision {before[0][0]} existed"
            if operation.outcome != "ok":
                continue
            if (
                operation.method in ("PATCH", "POST", "PUT")
                and (operation.revision or operation.carries_operation)
                and (words := _unwritten_reason(operation, {entry[0]: entry[2] for entry in entries}))
            ):
                yield "I-01", f"{request} was acknowledged at revision {operation.revision}, {words}"
            if operation.expected_revision and operation.revision in (
                written_at := [entry[0] for entry in entries]
            ):
                # A PUT replaces exactly the revision that the client read.
                former = written_at[: written_at.index(operation.revision)][-1:]
                if former != [operation.expected_revision]:
                    yield (
                        "I-01",
                        (
                            f"{request} replaced revision {former}"
                            f" instead of the expected revision {operation.expected_revision}"
                        ),
                    )
            if operation.method == "DELETE" and not any(
                is_being_deleted(entry[2]) for entry in (*before, *during)
            ):
                yield "I-01", f"{request} was acknowledged, but the object was not deleted"
            if operation.method == "GET" and before and operation.revision < before[0][0]:
                yield (
                    "I-04",
                    f"{request} returned revision {operation.revision} after revision {before[0][0]} was written",
                )

    def check_caches(self) -> Findings:
        """I-06: the leader's caches equal the stored state at the claimed revision, and the latest state at
        the end."""
        for at, words in self.run.cache_mismatches[:5]:
            yield "I-06", f"at {at:.1f} s {words}"
        host = self.world.leader()
        context = host.server.leadership.context if host is not None and host.server is not None else None
        if context is None:
            yield "I-32", "no server is leader at the end"
            return
        for cache in context.caches:
            if words := cache_difference(cache, self.world.store.revisions_by_path(cache.resource)):
                yield "I-06", words

    def check_leadership(self, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
        """I-08: a term has one writer, and terms grow. I-09: controllers write with the fence of the current
        term."""
        if record.term is None:
            if record.actor and record.origin == CONTROLLERS:
                yield "I-09", f"{record.actor} wrote {_keys(changes)} as a controller, without a fence"
            return
        number = record.term.number
        if number != record.current_term:
            yield (
                "I-09",
                (
                    f"{record.actor} wrote {_keys(changes)} in term {number}"
                    f" after term {record.current_term} began"
                ),
            )
        if self.writers_by_term.setdefault(number, record.actor) != record.actor:
            yield (
                "I-08",
                f"{record.actor} wrote in term {number}, which belongs to {self.writers_by_term[number]}",
            )
        # A leader of an ended term must not write after its successor.
        if number < max(self.writers_by_term):
            yield "I-08", f"{record.actor} wrote in term {number} after term {max(self.writers_by_term)}"

    def check_elections(self) -> Findings:
        """I-10: a jump of a wall clock deposes no leader."""
        # Only faults that can disturb a leader excuse a further election.
        if (
            not LEADER_DISRUPTING_FAULTS & set(self.run.fault_plan.kinds)
            and len(self.world.store.elections) > 1
        ):
            when = ", ".join(f"{election.at:.1f} s" for election in self.world.store.elections)
            yield "I-10", f"leadership changed without a fault: elections at {when}"

    def check_join_scope(self, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
        """I-38: a joining machine writes only its own node and its token."""
        if record.origin.startswith("join "):
            name = record.origin.removeprefix("join ")
            out_of_scope = [
                str(change.key)
                for change in changes
                if change.key != node_key(name) and not change.key.name.startswith("join-")
            ]
            if out_of_scope:
                yield "I-38", f"{name} wrote {', '.join(out_of_scope)} while joining"

    def check_final_state(self) -> Findings:
        """I-16, I-32: exactly the desired workloads run. I-33: no component writes during the quiet period."""
        live_runs: list[InstanceRun] = []
        for machine in self.world.machines.values():
            live_runs += (run for run in instance_runs(machine) if run.end == inf)
        running = {(run.node, run.instance_id.uid) for run in live_runs}
        desired, waiting = set(), set()
        for path, workload in self.snapshot.workloads.items():
            status = workload.status
            if reserved_node(workload):
                reservation = reservation_record(workload)
                yield "I-16", f"{path} still has a reservation on {reserved_node(workload)}: {reservation}"
            if workload.metadata.deletion_timestamp:
                yield (
                    "I-32",
                    (
                        f"{path} is still being deleted: {status.last_action},"
                        f" {status.actual_state} on {node_of(workload)}"
                    ),
                )
            if workload.spec.desired_state != "Running":
                continue
            if self._may_wait(workload):
                yield from self._check_explained(path, workload)
                waiting.add(path)
                continue
            assignment = (node_of(workload), workload.metadata.uid)
            desired.add(assignment)
            if not status.ready or assignment not in running:
                scheduled = find_condition(status.conditions, SCHEDULED_CONDITION)
                reason = scheduled.message if scheduled else ""
                yield (
                    "I-32",
                    (
                        f"{path} is {status.actual_state} on {assignment[0] or 'no node'}"
                        f" ({status.last_action}): {reason[:200]}"
                    ),
                )
        uids = {service.metadata.uid for service in self.snapshot.services.values()}
        for path, workload in self.snapshot.workloads.items():
            if workload.spec.service and not any(
                owner.uid in uids for owner in workload.metadata.owner_references
            ):
                yield "I-32", f"{path} belongs to a deleted service"
        yield from self._outdated_instances(live_runs, waiting)
        # Instances that no workload desires must have stopped.
        for node, uid in sorted(running - desired):
            yield "I-32", f"{node} runs a copy of {uid} that no workload desires"
        for key, service in self.snapshot.services.items():
            ready = sum(bool(replica.status.ready) for replica in self.snapshot.replicas_of(key))
            if service.metadata.deletion_timestamp or ready != service.spec.desired_replicas():
                placed = find_condition(service.status.conditions, PLACED_CONDITION)
                yield (
                    "I-32",
                    (
                        f"{key} has {ready} of {service.spec.desired_replicas()} desired replicas ready:"
                        f" {placed.message[:200] if placed else 'not placed'}"
                    ),
                )
        yield from self._check_quiet(waiting)

    def _check_quiet(self, waiting: set[str]) -> Findings:
        """I-33: no component writes during the quiet period. Two writes are allowed: a new reason, once per
        waiting workload, and the start of a month in a pool."""
        late = [
            record
            for record in self.world.store.history
            if record.at > self.world.loop.time() - QUIET_PERIOD_S and record.actor
        ]
        changes = chain.from_iterable(record.changes for record in late)
        written = Counter(change.key for change in changes if change.key.resource != "events")
        # A waiting workload may update its reason once.
        allowed = Counter({Key(LatticeWorkload.resource.id, *path.split("/")): 1 for path in waiting})
        # A new month changes the status of a pool; on a host with a slow clock it may begin in this period.
        for path, pool in self.snapshot.pools.items():
            versions = self.snapshot.versions(LatticePool, path, self.world.loop.time() - QUIET_PERIOD_S)
            budgets = [version.status.budget for version in versions if version.status.budget]
            costs = [budget.current_month_cost or 0 for budget in budgets]
            month_changes = sum(new < old for new, old in pairwise(costs))
            allowed[Key(pool.resource.id, "", pool.metadata.name)] += month_changes
        if written - allowed:
            most_written = ", ".join(f"{key} x{count}" for key, count in written.most_common(4))
            yield "I-33", f"{len(late)} commits in the last {QUIET_PERIOD_S:g} s: {most_written}"

    def _outdated_instances(self, live_runs: list[InstanceRun], waiting: set[str]) -> Findings:
        """I-32: instances run the current command of their service, unless the rollout waits for capacity."""
        for run in live_runs:
            workload = self.snapshot.workloads.get(run.spec.workload)
            # A copy of an earlier workload with the same name is not outdated: it should not run at all, and
            # `check_final_state` reports it.
            if workload is None or workload.metadata.uid != run.instance_id.uid:
                continue
            key = service_path(workload)
            service = self.snapshot.services.get(key)
            if service is not None and any(
                path_of(replica) in waiting for replica in self.snapshot.replicas_of(key)
            ):
                continue
            container = (service or workload).spec.containers.get(run.instance_id.container)
            if container is None or container.command != run.spec.container.command:
                words = " ".join(container.command) if container else "no container of that name"
                yield (
                    "I-32",
                    (
                        f"{run.spec.workload} on {run.node} runs {' '.join(run.spec.container.command)},"
                        f" instead of {words}"
                    ),
                )

    def _may_wait(self, workload: LatticeWorkload) -> bool:
        """Report whether a desired workload may stay unbound: its gang has too few members, no node has free
        capacity for the surge replica of a rollout, or the workload has no service and is unschedulable.

        Remediation adds machines for services only. If a gang has too few members, its bound members may
        continue to run.
        """
        if node_of(workload):
            return False
        members, group = [workload], workload.spec.group
        if group is not None:
            members = [
                member
                for member in self.snapshot.workloads.values()
                if member.metadata.namespace == workload.metadata.namespace
                and member.spec.group is not None
                and member.spec.group.name == group.name
            ]
            if len(members) < group.min_member:
                return True
        if not workload.spec.service:
            return binding.are_unschedulable(members, self.snapshot)
        service = self.snapshot.services.get(service_path(workload))
        progressing = find_condition(service.status.conditions, PROGRESSING_CONDITION) if service else None
        # The service's Progressing condition must explain why the surge replica waits.
        if progressing is None or progressing.reason != "NoRoomForSurge":
            return False
        workloads = list(self.snapshot.workloads.values())
        for node in self.snapshot.nodes.values():
            if not binding.infeasible_reason(workload, node) and not binding.shortfalls(
                workload, node.metadata.name, node, workloads
            ):
                return False
        return True

    def _check_explained(self, path: str, workload: LatticeWorkload) -> Findings:
        """I-34: an unschedulable workload has a condition with the reason."""
        unscheduled = find_false(workload.status.conditions, SCHEDULED_CONDITION)
        if unscheduled is None or not unscheduled.message:
            yield "I-34", f"{path} is unschedulable and has no condition with the reason"

    def check_rejections(self) -> Findings:
        """I-35: no server repeats a rejected commit forever; the limit is lower for a writer that had
        received the conflicting revision."""
        for client in self.world.store_clients:
            worst, server = client.worst_rejection, client.process.name
            if worst.informed_attempts > MAX_INFORMED_REJECTIONS:
                yield (
                    "I-35",
                    (
                        f"{server} repeated a rejected commit {worst.informed_attempts} times in a row"
                        f" after receiving the conflicting revision: {worst.keys}"
                    ),
                )
            elif worst.attempts > MAX_REJECTIONS:
                yield (
                    "I-35",
                    f"{server} repeated a rejected commit {worst.attempts} times in a row: {worst.keys}",
                )


def _unwritten_reason(operation: OperationRecord, values: dict[int, bytes | None]) -> str:
    """The reason that the acknowledged revision is not the requested write; empty if the write is stored.

    `values` maps revisions to stored values. A request writes the unique name of its operation into the
    object, so the request changes the object when it arrives for the first time. If the request arrives
    again, the object already has that name, and nothing changes.
    """
    value = values.get(operation.revision)
    if value is None:
        return "which did not write the object"
    if operation.carries_operation and operation_in(value) != operation.operation:
        return f"which {operation_in(value) or 'no operation'} wrote"
    if (
        operation.replicas is not None
        and (replicas := msgspec.json.decode(value, type=LatticeService).spec.min_replicas)
        != operation.replicas
    ):
        return f"which has {replicas} replicas instead of {operation.replicas}"
    return ""


def _keys(changes: list[ObjectChange]) -> str:
    return ", ".join(str(change.key) for change in changes[:3])
