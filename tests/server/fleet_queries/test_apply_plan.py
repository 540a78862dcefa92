"""Applying a plan: differences from the cached plan are reported, and it is applied whole or not at all."""

import json
import os
import signal
from typing import Any

import pytest
from build.fleet_query_server import ADMIN, VIEWER, a_server, a_service_manifest, manifests

from lattice.errors import Conflict, Denied
from lattice.placement.queries.plan_diff import SECTIONS
from lattice.server.fleet_queries.plan_cache import PlanCache
from lattice.server.fleet_queries.query_schema import APPLY_QUERY
from lattice.store.protocol import Key

pytestmark = pytest.mark.timeout(90)


async def test_changed_plan_reports_only_differences() -> None:
    async with a_server() as server:
        # Larger than the other, so that it is placed first with every baseline.
        first = a_service_manifest("one", placement={"resources": {"cores": 1.5, "memoryGi": 1.5}})
        change = [first, a_service_manifest("two", replicas={"min": 2})]
        _, before = await server.ask("plan", manifests=change)
        await server.apply(first)
        for expect in (before["id"], before):
            status, answer = await server.ask("plan", manifests=change, expect=expect)
            assert (status, {cause["reason"] for cause in answer["details"]["causes"]}) == (
                409,
                {"PlanDiffers"},
            )
            said = [cause["message"] for cause in answer["details"]["causes"]]
            assert "service default/one: is no longer in the plan" in said
            assert not [message for message in said if message.startswith("service default/two: was")]
        status, answer = await server.ask("plan", manifests=change, expect="p-0123")
        assert [cause["reason"] for cause in answer["details"]["causes"]] == ["PlanUnknown"]
        assert (
            await server.ask("plan", manifests=change, expect={"id": "p-1", "services": [{"name": "x"}]})
        )[0] == 400


def test_oldest_cached_plans_are_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = PlanCache()
    sections: dict[str, list[Any]] = {name: [] for name in SECTIONS}
    monkeypatch.setattr("lattice.server.fleet_queries.plan_cache.MAX_CACHED_BYTES", 300)
    for number in range(9):
        plans.add({"id": f"p-{number}", **sections})
    with pytest.raises(Conflict) as old:
        plans.require_same_outcome("p-0", {"id": "p-x", **sections})
    with pytest.raises(Conflict) as new:
        plans.require_same_outcome("p-8", {"id": "p-x", **sections})
    assert [each.causes[0].reason for each in (old.value, new.value)] == ["PlanUnknown", "PlanDiffers"]


async def test_plan_is_applied_in_one_commit() -> None:
    async with a_server() as server:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        home = a_service_manifest("api") | {"metadata": {"name": "api", "namespace": "shop"}}
        change = [home, space, a_service_manifest(), manifests()[0]]
        _, plan = await server.ask("plan", manifests=change)
        before = await server.store.revision()
        status, answer = await server.ask(APPLY_QUERY, ADMIN, manifests=change, expect=plan["id"])
        assert status == 200, answer
        assert await server.store.revision() == before + 1
        assert [each["verdict"] for each in answer["objects"]] == [
            "created",
            "created",
            "created",
            "unchanged",
        ]
        assert {each["object"]["metadata"]["resourceVersion"] for each in answer["objects"][:3]} == {
            str(before + 1)
        }
        assert (answer["plan"], answer["meanwhile"]) == (plan["id"], [])
        _, again = await server.ask("plan", manifests=change)
        assert again["isEmpty"]


async def test_stale_plan_is_not_applied() -> None:
    """The pool is closed between planning and commit."""
    async with a_server() as server:
        change = a_service_manifest(replicas={"min": 1})
        _, plan = await server.ask("plan", manifests=[change])
        task = await server.begun(APPLY_QUERY, manifests=[change], expect=plan)
        others = next(manifest for manifest in manifests() if manifest["metadata"]["name"] == "us-east")
        others["spec"]["capacity"] = {"maxNodes": 0}
        await server.apply(others)
        pid = server.fleet.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGCONT)
        status, answer = await task
        assert status == 409
        assert answer["details"]["causes"][0]["reason"] == "PlanDiffers"
        assert "default/web" in json.dumps(answer["details"]["causes"])
        assert await server.store.get(Key("latticeservices.lattice.dev", "default", "web")) is None


async def test_viewer_cannot_apply_plan() -> None:
    async with a_server() as server:
        _, plan = await server.ask("plan", manifests=[a_service_manifest()])
        revision = await server.store.revision()
        with pytest.raises(Denied, match="may only read"):
            await server.ask(APPLY_QUERY, VIEWER, manifests=[a_service_manifest()], expect=plan["id"])
        assert await server.store.revision() == revision


async def test_large_plan_is_applied_in_several_commits() -> None:
    async with a_server() as server:
        change = [
            a_service_manifest(f"web-{number}", placement={"resources": {"cores": 0.01, "memoryGi": 0.01}})
            for number in range(230)
        ]
        _, plan = await server.ask("plan", manifests=change)
        before = await server.store.revision()
        status, answer = await server.ask(APPLY_QUERY, ADMIN, manifests=change, expect=plan["id"])
        assert (status, len(answer["objects"])) == (200, 230)
        assert await server.store.revision() == before + 3
        assert answer["meanwhile"] == []
