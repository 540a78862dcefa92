"""Fleet queries against a real process beside a store in memory: answers, rejections and access."""

import json
from typing import Any

import msgspec
import pytest
from build.fleet_query_server import ADMIN, STRANGER, VIEWER, Server, a_server, a_service_manifest

from lattice import metrics
from lattice.errors import Denied, MethodNotAllowed
from lattice.kinds.meta.json_body import encode
from lattice.placement.queries.dispatch import answer_query
from lattice.server.discovery.extra_paths import QUERY_PROPERTIES, SHARED_PROPERTIES
from lattice.server.fleet_queries.dry_run import OverlayStore
from lattice.server.fleet_queries.query_schema import APPLY_QUERY, QUERY_TYPES, PlanQuery
from lattice.server.fleet_queries.service import query_of_path
from lattice.store.protocol import Delete, Key

pytestmark = pytest.mark.timeout(90)


QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("plan", {}),
    ("why", {"service": "default/api-gateway"}),
    ("why", {"service": "default/cache", "pool": "us-east"}),
    ("fit", {"service": "default/database"}),
    ("fit", {"service": "default/database", "lose": ["us-east"]}),
    ("cost", {"by": "pool", "inNamespace": "default"}),
    ("whatif", {"lose": ["us-east"], "priceMillionths": 1_200_000}),
    ("whatif", {"drop": [["us-east", "gdpr"]]}),
    ("whatif", {"loseEach": True}),
    ("cost", {"by": "service"}),
    ("optimise", {"timeLimitSeconds": 5.0, "maxMoves": 3}),
]


async def test_answers_equal_the_pure_function() -> None:
    async with a_server() as server:
        revision = await server.store.revision()
        for ask, question in QUESTIONS:
            status, answer = await server.ask(ask, **question)
            assert (status, answer.pop("revision")) == (200, str(revision)), answer
            wanted = json.loads(encode(answer_query({"ask": ask, **question}, await server.world())))
            assert _without_times(answer) == _without_times(wanted), ask
        assert await server.store.revision() == revision
        assert (
            metrics.REGISTRY.get_sample_value("lattice_plan_gap_ratio") == answer["gapMillionths"] / 1_000_000
        )


def _without_times(document: Any) -> Any:
    """The document without times, and without the monthly totals of budgets, which shrink as time passes."""
    kept = {name: value for name, value in document.items() if "econds" not in name}
    budgets = [
        {name: value for name, value in each.items() if name not in ("before", "after")}
        for each in kept.get("budgets", ())
    ]
    return {**kept, **({"budgets": budgets} if "budgets" in kept else {})}


async def test_plan_sees_later_writes() -> None:
    async with a_server() as server:
        change = a_service_manifest(replicas={"min": 2})
        _, before = await server.ask("plan", manifests=[change])
        assert [(each["mark"], each["name"]) for each in before["services"]][-1] == ("+", "default/web")
        await server.apply(change)
        await server.store.commit([Delete(Key("latticeservices.lattice.dev", "default", "cache"))])
        _, after = await server.ask("plan", manifests=[change])
        assert after["isEmpty"]
        assert int(after["revision"]) > int(before["revision"])
        _, cost = await server.ask("cost", by="service")
        # No machine is paid for yet: the service that was applied waits, and the deleted one is gone.
        assert (cost["rows"], "default/web" in cost["unplaced"]) == ([], True)
        assert "default/cache" not in cost["unplaced"]


async def test_plan_takes_deletions_and_namespaces() -> None:
    async with a_server() as server:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aws-creds"}}
        gone = {"kind": "LatticeService", "name": "api-gateway"}
        status, answer = await server.ask(
            "plan", manifests=[a_service_manifest(), secret, space], namespace="shop"
        )
        assert (status, answer["ignored"]) == (200, {"Secret": 1})
        assert [each["name"] for each in answer["services"] if each["mark"] == "+"] == ["shop/web"]
        status, answer = await server.ask("plan", delete=[gone])
        assert [each["name"] for each in answer["services"] if each["mark"] == "-"] == ["default/api-gateway"]


REFUSED: list[Any] = [
    pytest.param(
        {"manifests": [a_service_manifest(replicas={"min": -1})]},
        422,
        "manifests[0].spec.replicas.min",
        id="a value out of range",
    ),
    pytest.param(
        {"manifests": [a_service_manifest(replicass=1)]},
        422,
        "manifests[0].spec.replicass",
        id="a field that does not exist",
    ),
    pytest.param(
        {"manifests": [a_service_manifest(), a_service_manifest()]}, 422, "manifests[1]", id="an object twice"
    ),
    pytest.param({"manifests": ["web"]}, 400, "manifests[0]", id="no object"),
    pytest.param(
        {"manifests": [{"kind": "LatticeService"}]}, 400, "manifests[0].apiVersion", id="no version"
    ),
    pytest.param(
        {"manifests": [a_service_manifest() | {"kind": "Pod"}]}, 404, "manifests[0].kind", id="no such kind"
    ),
    pytest.param({"manifests": [a_service_manifest("")]}, 400, "manifests[0].metadata.name", id="no name"),
    pytest.param(
        {"manifests": [a_service_manifest() | {"kind": "LatticeLedger"}]},
        403,
        "manifests[0]",
        id="a kind that only controllers write",
    ),
    pytest.param(
        {"manifests": [a_service_manifest()], "namespace": "shop"},
        404,
        "manifests[0]",
        id="a missing namespace",
    ),
    pytest.param({"manifest": []}, 422, "", id="a question with an unknown field"),
    pytest.param({"force": "yes"}, 422, "force", id="a field of another type"),
    pytest.param(
        {"delete": [{"kind": "LatticePool", "name": "mars"}]}, 404, None, id="a deletion of a missing object"
    ),
    pytest.param(
        {"delete": [{"kind": "LatticeNode", "name": "n"}]},
        422,
        "delete",
        id="a deletion of an undeclared kind",
    ),
    pytest.param({"prices": [{"csv": "nonsense", "source": "my.csv"}]}, 422, None, id="invalid prices"),
    pytest.param({"expect": "p-0"}, 409, "expect", id="another plan"),
]


async def test_invalid_manifests_are_reported_with_path() -> None:
    async with a_server() as server:
        revision = await server.store.revision()
        for case in REFUSED:
            question, status, field = case.values
            found, answer = await server.ask("plan", **question)
            assert (found, answer["kind"]) == (status, "Status"), (case.id, answer)
            causes = [cause["field"] for cause in answer["details"].get("causes", [])]
            assert field is None or field in causes, (case.id, answer)
        assert await server.store.revision() == revision


@pytest.mark.parametrize(
    ("ask", "question", "status", "says"),
    [
        pytest.param("why", {}, 422, 'missing required field "service"', id="why without an object"),
        pytest.param("why", {"service": "web"}, 422, "service", id="a service without its namespace"),
        pytest.param(
            "fit",
            {"service": "default/nobody"},
            404,
            "there is no service default/nobody",
            id="a missing service",
        ),
        pytest.param("cost", {"by": "moon"}, 422, "by", id="an unknown grouping"),
        pytest.param(
            "cost",
            {"inNamespace": "nope"},
            404,
            "there is no namespace nope",
            id="costs of a missing namespace",
        ),
        pytest.param(
            "plan",
            {"namespace": "nope"},
            404,
            "there is no namespace nope",
            id="a plan in a missing namespace",
        ),
        pytest.param(
            "plan",
            {"latency": {"csv": "", "source": "rtt.csv"}},
            422,
            "is empty",
            id="a latency file with nothing in it",
        ),
        pytest.param(
            "plan",
            {"latency": {"csv": "from,to,ms\na,b,3\n", "source": "rtt.csv"}},
            422,
            "rtt.csv line 2",
            id="a region without pools",
        ),
        pytest.param(
            "optimise",
            {"timeLimitSeconds": -1e16},
            422,
            "timeLimitSeconds",
            id="a search of less than no time",
        ),
        pytest.param(
            "optimise",
            {"timeLimitSeconds": 31},
            422,
            "the maximum of this server is 30",
            id="a search longer than the limit",
        ),
        pytest.param("apply", {"manifests": [{}]}, 422, "the id of the plan", id="an apply without a plan"),
        pytest.param("apply", {"expect": "p-0"}, 422, "and its manifests", id="an apply of nothing"),
    ],
)
async def test_malformed_queries_are_rejected(
    ask: str, question: dict[str, Any], status: int, says: str
) -> None:
    server = Server(30)
    try:
        found, answer = await server.ask(ask, ADMIN, **question)
        assert (found, says in answer["message"]) == (status, True), answer
    finally:
        await server.fleet.close()


def test_viewers_may_query() -> None:
    server = Server(30)
    server.fleet.admit(ADMIN, "plan")
    server.fleet.admit(VIEWER, "plan")
    with pytest.raises(Denied, match="in none of the groups"):
        server.fleet.admit(STRANGER, "plan")


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("apis/lattice.dev/v1alpha1/fleet/plan", "plan", id="a question"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/apply", "apply", id="an apply"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/guess", "", id="another group"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/plan/x", "", id="something below one"),
        pytest.param("apis/lattice.dev/v1alpha1/latticepools/plan", "", id="an object of that name"),
    ],
)
def test_paths(path: str, found: str) -> None:
    assert query_of_path(path.split("/")) == found


@pytest.mark.parametrize("ask", [*QUERY_TYPES, APPLY_QUERY])
def test_openapi_declares_fields_that_are_read(ask: str) -> None:
    kind = QUERY_TYPES.get(ask, PlanQuery)
    assert {*SHARED_PROPERTIES, *QUERY_PROPERTIES[ask]} == {
        field.encode_name for field in msgspec.structs.fields(kind)
    }


async def test_overlay_store_is_read_only() -> None:
    shelf = OverlayStore({})
    for verb in (
        shelf.list,
        shelf.watch,
        shelf.commit,
        shelf.revision,
        shelf.compact,
        shelf.campaign,
        shelf.renew,
        shelf.resign,
    ):
        with pytest.raises(MethodNotAllowed):
            await verb()
    await shelf.close()
