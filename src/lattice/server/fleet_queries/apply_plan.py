"""Apply the manifests of a plan only if the outcome would still be what the plan showed.

The query process computes the plan again on the newest state; if the outcome differs, the server rejects the
plan and writes nothing. Before the commit, the server reads the changes of every kind that users declare
(pools, node classes, infrastructure, policies, services): after a change, the query process computes the plan
once more. Every object is written over the revision that the plan read, up to a hundred objects in one
commit. Only the few milliseconds of the commit are unguarded: another user's change in that time is not
noticed before the commit, but the reply names the change.
"""

import time
from collections.abc import Sequence

import msgspec

from lattice.errors import Conflict, LatticeError
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.stored_encoding import splice_revision
from lattice.placement.feed.placement_input import DECLARED_KINDS
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.fleet_queries.protocol import ObjectRow, PlannedWrite, QueryResult
from lattice.server.fleet_queries.query_schema import APPLY_QUERY
from lattice.server.fleet_queries.service import FleetQueryService, QueryRecord
from lattice.server.requests.call import Reply, User
from lattice.store.commit_packing import CommitCost, cost_of_writes, pack_commits
from lattice.store.protocol import ABSENT, Check, Key, Put, RevisionConflict

# Attempts before apply gives up because other users keep changing declarations.
MAX_PLAN_ATTEMPTS = 3
USER_DECLARED_RESOURCES = frozenset(kind.resource.id for kind in DECLARED_KINDS)


async def apply_plan(fleet: FleetQueryService, user: User, body: bytes) -> Reply:
    """Apply a plan for a user; raise Conflict if declarations keep changing during MAX_PLAN_ATTEMPTS
    attempts."""
    record = QueryRecord(APPLY_QUERY, user.name)
    with record.recorded():
        async with fleet.exclusive():
            record.started_at = time.perf_counter()
            for _ in range(MAX_PLAN_ATTEMPTS):
                result = await fleet.run_query(APPLY_QUERY, body, user, record)
                if result.status != 200:
                    return Reply(result.body, result.status)
                for write in result.writes:
                    # The dry run acts as an administrator, so the rights of the user are checked here.
                    resource = fleet.api.catalog.by_id(write.key.resource).resource
                    attributes = RequestAttributes(
                        "patch", resource.group, resource.plural, "", write.key.namespace, write.key.name
                    )
                    authorize(user, attributes, resource)
                changes = await fleet.catch_up()
                if not changes.is_incomplete and not _changed_declarations(changes.rows, set()):
                    return await _apply(fleet, result, record)
        record.outcome = "refused"
        raise Conflict(
            "other clients keep changing the input of the plan; nothing was applied",
            fix="retry, or apply without --plan",
        )


async def _apply(fleet: FleetQueryService, result: QueryResult, record: QueryRecord) -> Reply:
    changed = [write for write in result.writes if write.is_changed]
    revisions = {write.key: write.expect for write in result.writes}
    applied = 0
    try:
        for batch in pack_commits(changed, _commit_cost):
            puts = [Put(write.key, write.value, write.expect) for write in batch]
            revision = await fleet.api.store.commit(puts, checks=_namespace_checks(batch))
            revisions.update((write.key, revision) for write in batch)
            applied += len(batch)
    except LatticeError as error:
        record.outcome = "refused"
        raise _interrupted_error(error, applied, len(changed)) from error
    own_revisions = {revisions[write.key] for write in changed}
    meanwhile = _changed_declarations((await fleet.catch_up()).rows, own_revisions)
    plan = msgspec.json.decode(result.body)
    objects = [_applied_object(fleet, write, revisions[write.key]) for write in result.writes]
    return Reply(
        encode({"plan": plan["id"], "revision": plan["revision"], "objects": objects, "meanwhile": meanwhile})
    )


def _commit_cost(write: PlannedWrite) -> CommitCost:
    return cost_of_writes(
        [Put(write.key, write.value)], tuple(check.key for check in _namespace_checks([write]))
    )


def _namespace_checks(writes: Sequence[PlannedWrite]) -> list[Check]:
    """Return the checks that the namespaces of new objects are unchanged since the plan."""
    revisions = {
        write.key.namespace: write.namespace_revision
        for write in writes
        if write.expect == ABSENT and write.namespace_revision
    }
    written = {write.key for write in writes}
    namespaces = [(Key("namespaces", "", name), revision) for name, revision in sorted(revisions.items())]
    return [Check(key, revision) for key, revision in namespaces if key not in written]


def _interrupted_error(error: LatticeError, applied: int, total: int) -> LatticeError:
    progress = (
        f"{applied} of {total} objects were applied before the conflict" if applied else "nothing was applied"
    )
    if isinstance(error, RevisionConflict):
        return Conflict(
            f"{error.key} changed after the plan was computed; {progress}", fix="run `lattice plan` again"
        )
    return type(error)(f"{error.message}; {progress}", where=error.where, fix=error.fix)


def _changed_declarations(rows: Sequence[ObjectRow], own_revisions: set[int]) -> list[str]:
    """Return the keys of declared objects that a commit of another user wrote, sorted."""
    return sorted(
        {
            str(row.key)
            for row in rows
            if row.key.resource in USER_DECLARED_RESOURCES and row.revision not in own_revisions
        }
    )


def _applied_object(fleet: FleetQueryService, write: PlannedWrite, revision: int) -> dict[str, object]:
    if write.expect == ABSENT:
        verdict = "created"
    else:
        verdict = "configured" if write.is_changed else "unchanged"
    offset = fleet.api.catalog.by_id(write.key.resource).revision_offset
    return {"verdict": verdict, "object": msgspec.Raw(splice_revision(write.value, offset, revision))}
