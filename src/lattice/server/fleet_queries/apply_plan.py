"""Applies manifests if, and only if, the outcome is still that of a plan.

What is promised. The plan is made anew on the newest state; another outcome is refused, and nothing is written. Before the commit,
everything that people declare (pools, node classes, infrastructure, policies, services) is looked at again: if any of it has
changed meanwhile, the plan is made anew once more. Every object is written over the very revision that was planned with, up to
a hundred of them in one commit. What is left are the few milliseconds of that commit itself: if a declaration of somebody else
comes in there, both stand, and the answer names theirs.
"""

import time
from collections.abc import Iterator, Sequence

import msgspec

from lattice.errors import Conflict, LatticeError
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored_encoding import splice_revision
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.fleet_queries.protocol import ObjectRow, PlannedWrite, QueryResult
from lattice.server.fleet_queries.query_schema import APPLY_QUERY, PLACEMENT_INPUT_KINDS
from lattice.server.fleet_queries.service import FleetQueryService, QueryRecord
from lattice.server.requests.call import Reply, User
from lattice.store.protocol import (
    ABSENT,
    MAX_COMMIT_BYTES,
    MAX_COMMIT_OPERATIONS,
    Check,
    Key,
    Put,
    RevisionConflict,
)

MAX_PLAN_ATTEMPTS = 3  # plans made while others go on declaring
USER_DECLARED_RESOURCES = frozenset(
    kind.resource.id for kind in PLACEMENT_INPUT_KINDS if not kind.resource.managed_hint
)


async def apply_plan(fleet: FleetQueryService, user: User, body: bytes) -> Reply:
    account = QueryRecord(APPLY_QUERY, user.name)
    with account.recorded():
        async with fleet.exclusive():
            account.started_at = time.perf_counter()
            for _ in range(MAX_PLAN_ATTEMPTS):
                told = await fleet.run_query(APPLY_QUERY, body, user, account)
                if told.status != 200:
                    return Reply(told.body, told.status)
                _authorize_writes(fleet, user, told.writes)
                since = await fleet.catch_up()
                if not since.is_incomplete and not _changed_declarations(since.rows, set()):
                    return await _apply(fleet, told, account)
        account.outcome = "refused"
        raise Conflict(
            "others keep changing what the plan depends on, nothing was applied",
            fix="try again, or apply without a plan",
        )


def _authorize_writes(fleet: FleetQueryService, user: User, writes: Sequence[PlannedWrite]) -> None:
    for each in writes:
        resource = fleet.api.catalog.by_id(each.key.resource).resource
        authorize(
            user,
            RequestAttributes(
                "patch", resource.group, resource.plural, "", each.key.namespace, each.key.name
            ),
            resource,
        )


async def _apply(fleet: FleetQueryService, told: QueryResult, account: QueryRecord) -> Reply:
    changed = [each for each in told.writes if each.is_changed]
    revisions = {each.key: each.expect for each in told.writes}
    done = 0
    try:
        for commit in _commit_batches(changed):
            revision = await fleet.api.store.commit(
                [Put(each.key, each.value, each.expect) for each in commit], checks=_checks(commit)
            )
            revisions.update((each.key, revision) for each in commit)
            done += len(commit)
    except LatticeError as error:
        account.outcome = "refused"
        raise _interrupted_error(error, done, len(changed)) from error
    others = _changed_declarations((await fleet.catch_up()).rows, {revisions[each.key] for each in changed})
    plan = msgspec.json.decode(told.body)
    objects = [_applied_object(fleet, each, revisions[each.key]) for each in told.writes]
    return Reply(
        encode({"plan": plan["id"], "revision": plan["revision"], "objects": objects, "meanwhile": others})
    )


def _commit_batches(writes: Sequence[PlannedWrite]) -> Iterator[list[PlannedWrite]]:
    """In their order, as many at once as a commit can hold."""
    commit: list[PlannedWrite] = []
    size = 0
    for each in writes:
        length = len(each.value) + 2 * len(str(each.key)) + len(each.key.namespace) + 20
        if commit and (
            len(commit) + len(_checks([*commit, each])) >= MAX_COMMIT_OPERATIONS
            or size + length > MAX_COMMIT_BYTES
        ):
            yield commit
            commit, size = [], 0
        commit.append(each)
        size += length
    if commit:
        yield commit


def _checks(writes: Sequence[PlannedWrite]) -> list[Check]:
    """The namespaces of what is new are still those that were there."""
    homes = {
        each.key.namespace: each.namespace_revision
        for each in writes
        if each.expect == ABSENT and each.namespace_revision
    }
    written = {each.key for each in writes}
    named = [(Key("namespaces", "", name), revision) for name, revision in sorted(homes.items())]
    return [Check(key, revision) for key, revision in named if key not in written]


def _interrupted_error(error: LatticeError, done: int, of: int) -> LatticeError:
    already = f"{done} of {of} objects were applied before" if done else "nothing was applied"
    if isinstance(error, RevisionConflict):
        return Conflict(f"{error.key} changed since it was planned with; {already}", fix="plan again")
    return type(error)(f"{error.message}; {already}", where=error.where, fix=error.fix)


def _changed_declarations(rows: Sequence[ObjectRow], own: set[int]) -> list[str]:
    """What other people changed: written at another revision than ours."""
    return sorted(
        {
            str(each.key)
            for each in rows
            if each.key.resource in USER_DECLARED_RESOURCES and each.revision not in own
        }
    )


def _applied_object(fleet: FleetQueryService, each: PlannedWrite, revision: int) -> dict[str, object]:
    verdict = "created" if each.expect == ABSENT else "configured" if each.is_changed else "unchanged"
    head = fleet.api.catalog.by_id(each.key.resource).revision_offset
    return {"verdict": verdict, "object": msgspec.Raw(splice_revision(each.value, head, revision))}
