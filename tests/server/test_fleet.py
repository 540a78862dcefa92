"""Questions about the fleet, put to a real process beside a store in memory: answers, refusals, and everything that can go wrong."""

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from lattice import metrics
from lattice.clock import SystemClock
from lattice.errors import Conflict, Denied, LatticeError, NotAllowed, TooMany, Unavailable
from lattice.kinds import KINDS
from lattice.kinds.body import encode
from lattice.placement.answer import answer
from lattice.placement.differ import SECTIONS
from lattice.placement.world import World
from lattice.server import verbs
from lattice.server.api import Api
from lattice.server.bootstrap import bootstrap
from lattice.server.call import Call, User
from lattice.server.catalog import Catalog
from lattice.server.fleet import WAITING, Beside, FleetQuestions, asked, while_wanted
from lattice.server.fleetpaths import OWN, SHARED
from lattice.server.pipe import Told, framed
from lattice.server.planned import apply_planned
from lattice.server.plans import Plans
from lattice.server.question import APPLY, ASKS, LOOKED_AT, PlanQuestion
from lattice.server.rehearsal import Shelf, target_of
from lattice.server.snapshot import Snapshot
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Delete, Key, Put
from tests.store.virtual import VirtualClock

ADMIN, VIEWER = User("ann", frozenset({"lattice:admins"})), User("vic", frozenset({"lattice:viewers"}))
STRANGER = User("eve", frozenset({"system:authenticated"}))
CATALOG = Catalog(KINDS)
SEED_000 = Path(__file__).parents[2] / "examples" / "worlds" / "seed-000"
POOLS = "latticepools.lattice.dev"
DECODERS = {kind.resource.id: msgspec.json.Decoder(kind) for kind in LOOKED_AT}

pytestmark = pytest.mark.timeout(90)


def manifests() -> list[Any]:
    return [document for path in sorted(SEED_000.glob("*.yaml")) for document in yaml.safe_load_all(path.read_text())]


def a_service(name: str = "web", **spec: Any) -> dict[str, Any]:
    body = {"containers": {"main": {"image": "nginx"}}, "placement": {"resources": {"cores": 1, "memoryGi": 1}}, **spec}
    return {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeService", "metadata": {"name": name}, "spec": body}


class Server:
    """What a server is made of, without HTTP."""

    def __init__(self, limit: float) -> None:
        clock, uids = SystemClock(), itertools.count(1)
        self.store = MemoryStore(clock)
        self.api = Api(self.store, CATALOG, clock, lambda: f"uid-{next(uids)}", lambda: "x")
        self.fleet = FleetQuestions(self.api, Beside(), limit)

    async def apply(self, value: dict[str, Any]) -> None:
        query = {"fieldManager": "lattice"}
        await verbs.apply(self.api, Call("PATCH", target_of(CATALOG, value, "default"), ADMIN, query, encode(value), verbs.APPLY))

    async def ask(self, ask: str, user: User = VIEWER, **question: Any) -> tuple[int, Any]:
        self.fleet.admit(user, ask)
        body = encode(question)
        reply = await (apply_planned(self.fleet, user, body) if ask == APPLY else self.fleet.ask(user, ask, body))
        told = reply.body if isinstance(reply.body, bytes) else b"".join([piece async for piece in reply.body])
        return reply.status, json.loads(told)

    async def begun(self, ask: str, **question: Any) -> "asyncio.Task[tuple[int, Any]]":
        """A question that the process has been given and does not get to."""
        pid = self.fleet.beside.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        task = asyncio.create_task(self.ask(ask, ADMIN, **question))
        await turns()
        return task

    async def world(self) -> World:
        found = [(await self.store.list(each)).entries for each in DECODERS]
        world = World.of(DECODERS[entry.key.resource].decode(entry.value) for entries in found for entry in entries)
        return replace(world, now=datetime.now(UTC))


async def turns() -> None:
    """Nothing here waits for anything but the process: a few turns of the loop, and everything else is done."""
    for _ in range(200):
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def a_server(limit: float = 30) -> AsyncIterator[Server]:
    """With the first seed's world declared."""
    server = Server(limit)
    await bootstrap(server.api)
    for each in manifests():
        await server.apply(each)
    try:
        yield server
    finally:
        await server.fleet.close()


def is_alive(pid: int | None) -> bool:
    return pid is not None and Path(f"/proc/{pid}").exists()


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


def test_answers_are_those_of_the_pure_function() -> None:
    async def run() -> None:
        async with a_server() as server:
            revision = await server.store.revision()
            for ask, question in QUESTIONS:
                status, told = await server.ask(ask, **question)
                assert (status, told.pop("revision")) == (200, str(revision)), told
                wanted = json.loads(encode(answer({"ask": ask, **question}, await server.world())))
                assert _without_times(told) == _without_times(wanted), ask
            assert await server.store.revision() == revision
            assert metrics.REGISTRY.get_sample_value("lattice_plan_gap_ratio") == told["gapMillionths"] / 1_000_000

    asyncio.run(run())


def _without_times(document: Any) -> Any:
    """Nor what a budget's month comes to, which is less from one moment to the next."""
    kept = {name: value for name, value in document.items() if "econds" not in name}
    budgets = [{name: value for name, value in each.items() if name not in ("before", "after")} for each in kept.get("budgets", ())]
    return {**kept, **({"budgets": budgets} if "budgets" in kept else {})}


def test_a_plan_of_manifests_sees_what_others_wrote_since() -> None:
    async def run() -> None:
        async with a_server() as server:
            change = a_service(replicas={"min": 2})
            _, before = await server.ask("plan", manifests=[change])
            assert [(each["mark"], each["name"]) for each in before["services"]][-1] == ("+", "default/web")
            await server.apply(change)
            await server.store.commit([Delete(Key("latticeservices.lattice.dev", "default", "cache"))])
            _, after = await server.ask("plan", manifests=[change])
            assert after["isEmpty"]
            assert int(after["revision"]) > int(before["revision"])
            _, cost = await server.ask("cost", by="service")
            assert "default/cache" not in [each["name"] for each in cost["rows"]]
            assert "default/web" in [each["name"] for each in cost["rows"]]

    asyncio.run(run())


def test_deletions_and_namespaces_can_be_part_of_the_question() -> None:
    async def run() -> None:
        async with a_server() as server:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "aws-creds"}}
            gone = {"kind": "LatticeService", "name": "api-gateway"}
            status, told = await server.ask("plan", manifests=[a_service(), secret, space], namespace="shop")
            assert (status, told["ignored"]) == (200, {"Secret": 1})
            assert [each["name"] for each in told["services"] if each["mark"] == "+"] == ["shop/web"]
            status, told = await server.ask("plan", delete=[gone])
            assert [each["name"] for each in told["services"] if each["mark"] == "-"] == ["default/api-gateway"]

    asyncio.run(run())


REFUSED: list[Any] = [
    pytest.param({"manifests": [a_service(replicas={"min": -1})]}, 422, "manifests[0].spec.replicas.min", id="a value out of range"),
    pytest.param({"manifests": [a_service(replicass=1)]}, 422, "manifests[0].spec.replicass", id="a field that does not exist"),
    pytest.param({"manifests": [a_service(), a_service()]}, 422, "manifests[1]", id="an object twice"),
    pytest.param({"manifests": ["web"]}, 400, "manifests[0]", id="no object"),
    pytest.param({"manifests": [{"kind": "LatticeService"}]}, 400, "manifests[0].apiVersion", id="no version"),
    pytest.param({"manifests": [a_service() | {"kind": "Pod"}]}, 404, "manifests[0].kind", id="no such kind"),
    pytest.param({"manifests": [a_service("")]}, 400, "manifests[0].metadata.name", id="no name"),
    pytest.param({"manifests": [a_service() | {"kind": "LatticeLedger"}]}, 403, "manifests[0]", id="what only Lattice writes"),
    pytest.param({"manifests": [a_service()], "namespace": "shop"}, 404, "manifests[0]", id="a namespace that is not there"),
    pytest.param({"manifest": []}, 422, "", id="a question with an unknown field"),
    pytest.param({"force": "yes"}, 422, "force", id="a field of another type"),
    pytest.param({"delete": [{"kind": "LatticePool", "name": "mars"}]}, 404, None, id="a deletion of what is not there"),
    pytest.param({"delete": [{"kind": "LatticeNode", "name": "n"}]}, 422, "delete", id="a deletion of what is not declared"),
    pytest.param({"prices": [{"csv": "nonsense", "source": "my.csv"}]}, 422, None, id="prices that are none"),
    pytest.param({"expect": "p-0"}, 409, "expect", id="another plan"),
]


def test_what_is_wrong_is_told_with_its_place_and_nothing_is_written() -> None:
    async def run() -> None:
        async with a_server() as server:
            revision = await server.store.revision()
            for case in REFUSED:
                question, status, field = case.values
                found, told = await server.ask("plan", **question)
                assert (found, told["kind"]) == (status, "Status"), (case.id, told)
                causes = [each["field"] for each in told["details"].get("causes", [])]
                assert field is None or field in causes, (case.id, told)
            assert await server.store.revision() == revision

    asyncio.run(run())


@pytest.mark.parametrize(
    ("ask", "question", "status", "says"),
    [
        pytest.param("why", {}, 422, 'missing required field "service"', id="why what"),
        pytest.param("why", {"service": "web"}, 422, "service", id="a service without its namespace"),
        pytest.param("fit", {"service": "default/nobody"}, 404, "there is no service default/nobody", id="a service that is not there"),
        pytest.param("cost", {"by": "moon"}, 422, "by", id="by what"),
        pytest.param("cost", {"inNamespace": "nope"}, 404, "there is no namespace nope", id="costs of a namespace that is not there"),
        pytest.param("plan", {"namespace": "nope"}, 404, "there is no namespace nope", id="a plan in a namespace that is not there"),
        pytest.param("plan", {"latency": {"csv": "", "source": "rtt.csv"}}, 422, "is empty", id="a latency file with nothing in it"),
        pytest.param(
            "plan", {"latency": {"csv": "from,to,ms\na,b,3\n", "source": "rtt.csv"}}, 422, "rtt.csv line 2", id="a place that nobody offers"
        ),
        pytest.param("optimise", {"timeLimitSeconds": -1e16}, 422, "timeLimitSeconds", id="a search of less than no time"),
        pytest.param("optimise", {"timeLimitSeconds": 31}, 422, "this server takes up to 30", id="a search longer than the limit"),
        pytest.param("apply", {"manifests": [{}]}, 422, "name the plan", id="an apply without a plan"),
        pytest.param("apply", {"expect": "p-0"}, 422, "give its manifests", id="an apply of nothing"),
    ],
)
def test_questions_that_make_no_sense(ask: str, question: dict[str, Any], status: int, says: str) -> None:
    async def run() -> None:
        server = Server(30)
        try:
            found, told = await server.ask(ask, ADMIN, **question)
            assert (found, says in told["message"]) == (status, True), told
        finally:
            await server.fleet.close()

    asyncio.run(run())


def test_who_may_look_may_ask() -> None:
    server = Server(30)
    server.fleet.admit(ADMIN, "plan")
    server.fleet.admit(VIEWER, "plan")
    with pytest.raises(Denied, match="in none of the groups"):
        server.fleet.admit(STRANGER, "plan")


def test_a_process_killed_in_the_middle_is_started_again() -> None:
    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            pid = server.fleet.beside.pid
            assert pid is not None
            task = await server.begun("cost")
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(Unavailable, match="ended in the middle"):
                await task
            status, told = await server.ask("cost")
            assert (status, told["ask"]) == (200, "cost")
            assert server.fleet.beside.pid not in (None, pid)
            assert not is_alive(pid)

    asyncio.run(run())


def test_a_process_that_died_while_idle_is_started_again_and_the_log_says_so() -> None:
    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            pid = server.fleet.beside.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert await server.fleet.beside.why_ended() == "it was ended by SIGKILL"
            assert (await server.ask("cost"))[0] == 200

    with capture_logs() as logs:
        asyncio.run(run())
    assert [(each["log_level"], each["why"]) for each in logs if each["event"] == "fleet process ended"] == [
        ("error", "it was ended by SIGKILL")
    ]


def test_why_a_process_ended_is_in_the_log_and_in_the_answer() -> None:
    """It is told what no server says before it is asked, and breaks over it."""

    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            pid, process = server.fleet.beside.pid, server.fleet.beside._process
            assert pid is not None
            assert process is not None
            assert process.stdin is not None
            process.stdin.write(framed(Told(200, b"")))
            with pytest.raises(Unavailable, match=r"ended in the middle: it ended with code 1: msgspec\.ValidationError: ") as told:
                await server.ask("cost")
            assert "the server's log has all that it said" in told.value.fix
            assert (await server.ask("cost"))[0] == 200

    with capture_logs() as logs:
        asyncio.run(run())
    (ended,) = [each for each in logs if each["event"] == "fleet process ended"]
    assert "Traceback (most recent call last)" in ended["exception"]
    assert ended["why"] == "it ended with code 1"


def test_of_a_plan_that_was_told_lately_only_what_differs_is_said() -> None:
    async def run() -> None:
        async with a_server() as server:
            change = [a_service("one"), a_service("two", replicas={"min": 2})]
            _, before = await server.ask("plan", manifests=change)
            await server.apply(a_service("one"))
            for expect in (before["id"], before):
                status, told = await server.ask("plan", manifests=change, expect=expect)
                assert (status, {each["reason"] for each in told["details"]["causes"]}) == (409, {"PlanDiffers"})
                said = [each["message"] for each in told["details"]["causes"]]
                assert "service default/one: is not in it any more" in said
                assert not [each for each in said if each.startswith("service default/two: was")]
            status, told = await server.ask("plan", manifests=change, expect="p-0123")
            assert [each["reason"] for each in told["details"]["causes"]] == ["PlanUnknown"]
            assert (await server.ask("plan", manifests=change, expect={"id": "p-1", "services": [{"name": "x"}]}))[0] == 400

    asyncio.run(run())


def test_plans_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans()
    sections: dict[str, list[Any]] = {name: [] for name in SECTIONS}
    monkeypatch.setattr("lattice.server.plans.MOST", 300)
    for number in range(9):
        plans.keep({"id": f"p-{number}", **sections})
    with pytest.raises(Conflict) as old:
        plans.hold_to("p-0", {"id": "p-x", **sections})
    with pytest.raises(Conflict) as new:
        plans.hold_to("p-8", {"id": "p-x", **sections})
    assert [each.causes[0].reason for each in (old.value, new.value)] == ["PlanUnknown", "PlanDiffers"]


def test_no_more_may_wait_than_there_is_room_for() -> None:
    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            first = await server.begun("cost")
            waiting = [asyncio.create_task(server.ask("cost")) for _ in range(WAITING)]
            await turns()
            with pytest.raises(TooMany, match="ask again|questions about the fleet"):
                await server.ask("cost")
            pid = server.fleet.beside.pid
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
            assert {status for status, _ in await asyncio.gather(first, *waiting)} == {200}
            assert (await server.ask("cost"))[0] == 200

    asyncio.run(run())


def test_who_waits_too_long_is_told_to_come_again() -> None:
    async def run() -> None:
        async with a_server(limit=30) as server:
            await server.ask("cost")
            first = await server.begun("cost")
            server.fleet.limit = 0.1
            with pytest.raises(TooMany, match=r"took more than 0\.1 s"):
                await server.ask("cost")
            first.cancel()

    asyncio.run(run())


def test_a_question_that_takes_too_long_is_ended() -> None:
    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            pid = server.fleet.beside.pid
            server.fleet.limit = 0.2
            task = await server.begun("cost")
            with pytest.raises(Unavailable, match=r"within 0\.2 s"):
                await task
            assert not is_alive(pid)
            server.fleet.limit = 30
            assert (await server.ask("cost"))[0] == 200

    asyncio.run(run())


def test_who_goes_away_frees_the_place() -> None:
    async def run() -> None:
        async with a_server() as server:
            await server.ask("cost")
            pid = server.fleet.beside.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            is_there = True
            task = asyncio.create_task(server.fleet.ask(VIEWER, "cost", b"{}"))
            wanted = asyncio.create_task(while_wanted(task, lambda: is_there))
            await turns()
            is_there = False
            with pytest.raises(ConnectionResetError):
                await wanted
            assert task.cancelled()
            assert not is_alive(pid)
            assert (await server.ask("cost"))[0] == 200

    asyncio.run(run())


def test_nothing_is_left_of_the_process() -> None:
    async def run() -> int | None:
        async with a_server() as server:
            await server.ask("cost")
            await server.begun("cost")
            return server.fleet.beside.pid

    assert not is_alive(asyncio.run(run()))


def test_a_plan_is_applied_as_a_whole() -> None:
    async def run() -> None:
        async with a_server() as server:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
            home = a_service("api") | {"metadata": {"name": "api", "namespace": "shop"}}
            change = [home, space, a_service(), manifests()[0]]
            _, plan = await server.ask("plan", manifests=change)
            before = await server.store.revision()
            status, told = await server.ask(APPLY, ADMIN, manifests=change, expect=plan["id"])
            assert status == 200, told
            assert await server.store.revision() == before + 1
            assert [each["verdict"] for each in told["objects"]] == ["created", "created", "created", "unchanged"]
            assert {each["object"]["metadata"]["resourceVersion"] for each in told["objects"][:3]} == {str(before + 1)}
            assert (told["plan"], told["meanwhile"]) == (plan["id"], [])
            _, again = await server.ask("plan", manifests=change)
            assert again["isEmpty"]

    asyncio.run(run())


def test_a_plan_that_does_not_hold_any_more_is_not_applied() -> None:
    """Somebody closes the pool between the planning and the commit."""

    async def run() -> None:
        async with a_server() as server:
            change = a_service(replicas={"min": 1})
            _, plan = await server.ask("plan", manifests=[change])
            task = await server.begun(APPLY, manifests=[change], expect=plan)
            others = next(each for each in manifests() if each["metadata"]["name"] == "us-east")
            others["spec"]["capacity"] = {"maxNodes": 0}
            await server.apply(others)
            pid = server.fleet.beside.pid
            assert pid is not None
            os.kill(pid, signal.SIGCONT)
            status, told = await task
            assert status == 409
            assert told["details"]["causes"][0]["reason"] == "PlanDiffers"
            assert "default/web" in json.dumps(told["details"]["causes"])
            assert await server.store.get(Key("latticeservices.lattice.dev", "default", "web")) is None

    asyncio.run(run())


def test_who_may_only_look_applies_nothing() -> None:
    async def run() -> None:
        async with a_server() as server:
            _, plan = await server.ask("plan", manifests=[a_service()])
            revision = await server.store.revision()
            with pytest.raises(Denied, match="may only read"):
                await server.ask(APPLY, VIEWER, manifests=[a_service()], expect=plan["id"])
            assert await server.store.revision() == revision

    asyncio.run(run())


def test_more_than_a_commit_holds_is_applied_in_several() -> None:
    async def run() -> None:
        async with a_server() as server:
            change = [a_service(f"web-{number}", placement={"resources": {"cores": 0.01, "memoryGi": 0.01}}) for number in range(230)]
            _, plan = await server.ask("plan", manifests=change)
            before = await server.store.revision()
            status, told = await server.ask(APPLY, ADMIN, manifests=change, expect=plan["id"])
            assert (status, len(told["objects"])) == (200, 230)
            assert await server.store.revision() == before + 3
            assert told["meanwhile"] == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param("apis/lattice.dev/v1alpha1/fleet/plan", "plan", id="a question"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/apply", "apply", id="an apply"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/guess", "", id="none of ours"),
        pytest.param("apis/lattice.dev/v1alpha1/fleet/plan/x", "", id="something below one"),
        pytest.param("apis/lattice.dev/v1alpha1/latticepools/plan", "", id="an object of that name"),
    ],
)
def test_paths(path: str, found: str) -> None:
    assert asked(path.split("/")) == found


@pytest.mark.parametrize("ask", [*ASKS, APPLY])
def test_openapi_has_the_fields_that_are_read(ask: str) -> None:
    kind = ASKS.get(ask, PlanQuestion)
    assert {*SHARED, *OWN[ask]} == {each.encode_name for each in msgspec.structs.fields(kind)}


def test_a_shelf_is_only_for_looking() -> None:
    async def run() -> None:
        shelf = Shelf({})
        for verb in (shelf.list, shelf.watch, shelf.commit, shelf.revision, shelf.compact, shelf.campaign, shelf.renew, shelf.resign):
            with pytest.raises(NotAllowed):
                await verb()
        await shelf.close()

    asyncio.run(run())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), window=st.sampled_from([3, 1000]))
def test_a_snapshot_is_what_lists_say_at_its_revision(seed: int, window: int) -> None:
    """Also where so much changed that the watches have forgotten some of it."""

    async def run() -> None:
        draw, clock = random.Random(seed), VirtualClock()  # noqa: S311
        store = MemoryStore(clock, window)
        snapshot = Snapshot(store, clock, ["a", "b"])
        known: dict[Key, tuple[int, bytes]] = {}
        for _ in range(6):
            for _ in range(draw.randint(0, 12)):
                await _something(store, draw)
            async for load in snapshot.loads():
                if load.anew:
                    known.clear()
                for row in load.rows:
                    known.pop(row.key, None)
                    if row.value is not None:
                        known[row.key] = (row.revision, row.value)
            lists = [(await store.list(each, revision=snapshot.revision)).entries for each in ("a", "b")]
            assert known == {each.key: (each.revision, each.value) for entries in lists for each in entries}
            assert (snapshot.revision, snapshot.size) == (await store.revision(), len(known))
            if draw.random() < 0.2:
                snapshot.forget()

    asyncio.run(run())


async def _something(store: MemoryStore, draw: random.Random) -> None:
    key = Key(draw.choice("abc"), "", draw.choice("xyz"))
    with contextlib.suppress(LatticeError):
        await store.commit([Delete(key) if draw.random() < 0.3 else Put(key, str(draw.random()).encode())])
