"""Fleet queries over HTTP: the same answers as offline, nothing written, other requests served meanwhile, no
process left behind."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from build.servers import LATTICE, Server, running_server, start
from build.wire import CLASSES, Answer, Wire

ROOT = "/apis/lattice.dev/v1alpha1/fleet"
SEED_000 = Path(__file__).parents[2] / "examples" / "worlds" / "seed-000"
ARRIVAL = (
    0.5  # seconds after which a request has surely come to the server, which nothing outside it can tell
)
pytestmark = [pytest.mark.xdist_group("fleet-questions"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("fleet") / "data") as found:
        assert found.lattice("apply", "-f", str(SEED_000)).returncode == 0
        yield found


def asked(wire: Wire, ask: str, **question: Any) -> Answer:
    return wire.ask("POST", f"{ROOT}/{ask}", question, content_type="application/json")


def child_of(process: "subprocess.Popen[str]") -> int | None:
    """The process beside a server, if there is one."""
    pid = process.pid
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(found[0]) if found else None


def worker(server: Server, wire: Wire) -> int:
    assert asked(wire, "cost").status == 200
    pid = child_of(server.process)
    assert pid is not None
    return pid


def wait_until_gone(pid: int, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("flags", "ask", "question"),
    [
        pytest.param(
            ["plan", "--delete", "pool/ap-south"],
            "plan",
            {"delete": [{"kind": "LatticePool", "name": "ap-south"}]},
            id="plan",
        ),
        pytest.param(["why", "service/api-gateway"], "why", {"service": "default/api-gateway"}, id="why"),
        pytest.param(["fit", "service/cache"], "fit", {"service": "default/cache"}, id="fit"),
        pytest.param(["whatif", "--lose-pool", "us-east"], "whatif", {"lose": ["us-east"]}, id="whatif"),
        pytest.param(
            ["cost", "--by", "label:env", "-f", str(SEED_000 / "services.yaml")],
            "cost",
            {"by": "label:env", "yaml": (SEED_000 / "services.yaml").read_text()},
            id="cost of a plan",
        ),
        pytest.param(["optimise", "--time-limit", "5s"], "optimise", {"timeLimitSeconds": 5}, id="optimise"),
    ],
)
def test_query_answer_equals_the_offline_answer(
    server: Server, wire: Wire, flags: list[str], ask: str, question: dict[str, Any]
) -> None:
    offline = subprocess.run(
        [*LATTICE, *flags, "--world", str(SEED_000), "-o", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    wanted = _timeless(json.loads(offline.stdout))
    before = wire.revision
    told = asked(wire, ask, **question)
    assert told.status == 200, told.raw
    assert told.value["revision"] == str(before)
    assert _timeless(told.value) == wanted
    online = server.lattice(*flags, "-o", "json")
    assert online.returncode == offline.returncode, online.stderr
    document = json.loads(online.stdout)
    running = document.pop("running", None)
    assert _timeless(document) == wanted
    # Only a server knows what runs.
    assert (running and (running["phase"], running["ready"])) == (("Pending", 0) if ask == "why" else None)
    assert wire.revision == before


@pytest.mark.parametrize("by", ["pool", "service", "node", "label:env"])
def test_cost_on_a_server_is_that_of_the_recorded_machines(server: Server, wire: Wire, by: str) -> None:
    """Without the services controller no machine is bought, and no service is placed."""
    told = asked(wire, "cost", by=by).value
    assert (told["isRecorded"], told["total"]["hourlyMicros"], told["rows"]) == (True, 0, [])
    assert told["unplaced"] == ["default/database", "default/cache", "default/api-gateway"]
    online = server.lattice("cost", "--by", by, "-o", "json")
    assert _timeless(json.loads(online.stdout)) == _timeless(told)


def _timeless(document: dict[str, Any]) -> dict[str, Any]:
    """Without when it was asked, and how long it took: a server counts by the month that it is, files alone by 30 days."""
    return {
        name: value
        for name, value in document.items()
        if name not in ("revision", "month") and "econds" not in name
    }


def test_queries_require_a_viewer(server: Server) -> None:
    assert asked(Wire(server.mint("vic", "lattice:viewers")), "plan").status == 200
    assert asked(Wire(server.mint("tom", "lattice:viewers", token=True)), "plan").status == 200
    stranger = asked(Wire(server.mint("eve", "painters")), "plan")
    assert (stranger.status, stranger.value["reason"]) == (403, "Forbidden")
    known = Wire(server.mint("tom", "lattice:viewers", token=True))
    unknown = known.ask(
        "POST", f"{ROOT}/plan", {}, content_type="application/json", authorization="Bearer lat-nobody.x"
    )
    assert (unknown.status, unknown.value["reason"]) == (401, "Unauthorized")


def test_queries_accept_only_post(wire: Wire) -> None:
    assert wire.get(f"{ROOT}/plan").status == 405
    assert wire.get(f"{ROOT}/guess").status == 404
    assert asked(wire, "guess").status == 404


def test_refusals_name_the_file_and_the_line(server: Server, wire: Wire, tmp_path: Path) -> None:
    before = wire.revision
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text((SEED_000 / "services.yaml").read_text().replace("min: 2", "min: -2", 1))
    ran = server.lattice("plan", "-f", str(wrong))
    assert ran.returncode >= 3
    line = wrong.read_text().splitlines().index("    min: -2") + 1
    assert f"{wrong}:{line}" in ran.stderr
    assert "spec.replicas.min" in ran.stderr
    assert wire.revision == before


def test_query_body_may_exceed_the_object_limit(wire: Wire) -> None:
    table = "from,to,ms\n" + "us-east,eu-west,80\n" * 100_000
    told = asked(wire, "cost", latency={"csv": table, "source": "mine.csv"})
    assert told.status == 200, told.raw
    assert asked(wire, "cost", latency={"csv": "x" * (17 << 20), "source": "mine.csv"}).status == 413


def test_api_responds_while_a_query_runs(server: Server, wire: Wire) -> None:
    pid = worker(server, wire)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        try:
            long = threads.submit(asked, wire, "optimise", timeLimitSeconds=5)
            for _ in range(20):
                began = time.perf_counter()
                assert wire.get(CLASSES).status == 200
                assert time.perf_counter() - began < 1
            assert not long.done()
        finally:
            os.kill(pid, signal.SIGCONT)
        assert long.result().status == 200


def test_busy_worker_answers_with_retry_after(server: Server, wire: Wire) -> None:
    pid = worker(server, wire)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(12) as threads:
        try:
            many = [threads.submit(asked, wire, "cost") for _ in range(12)]
            refused = _first_refused(many)
        finally:
            os.kill(pid, signal.SIGCONT)
        statuses = sorted(each.result().status for each in many)
    assert refused.value["details"]["retryAfterSeconds"] == 1
    assert refused.headers["Retry-After"] == "1"
    assert statuses == [200] * 9 + [429] * 3


def _first_refused(many: Any) -> Answer:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for each in many:
            if each.done():
                found = each.result()
                assert isinstance(found, Answer)
                assert found.status == 429
                return found
        time.sleep(0.02)
    raise AssertionError("nobody was refused")


def test_killed_query_worker_is_an_error_and_is_replaced(server: Server, wire: Wire) -> None:
    pid = worker(server, wire)
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as threads:
        lost = threads.submit(asked, wire, "cost")
        time.sleep(ARRIVAL)
        os.kill(pid, signal.SIGKILL)
        told = lost.result()
    assert (told.status, told.value["reason"]) == (503, "ServiceUnavailable")
    assert "ended during the query: the process was killed by SIGKILL (fix: retry" in told.value["message"]
    lines = [
        json.loads(line)
        for line in (server.data_dir / "server.log").read_text().splitlines()
        if '"fleet process ended"' in line
    ]
    assert [(line["pid"], line["why"]) for line in lines if line["pid"] == pid] == [
        (pid, "the process was killed by SIGKILL")
    ]
    assert asked(wire, "cost").status == 200
    assert child_of(server.process) not in (None, pid)


def test_client_disconnect_frees_the_query_worker(server: Server, wire: Wire) -> None:
    pid = worker(server, wire)
    os.kill(pid, signal.SIGSTOP)
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]; from pathlib import Path; from build.wire import Wire\n"
        "print('asking', flush=True); Wire(Path(sys.argv[3])).ask('POST', sys.argv[4], {}, content_type='application/json')"
    )
    here = Path(__file__).parent
    command = [
        sys.executable,
        "-c",
        code,
        str(here),
        str(here.parent),
        str(server.kubeconfig),
        f"{ROOT}/cost",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "asking\n"
        time.sleep(2 * ARRIVAL)
        caller.kill()
    wait_until_gone(pid)
    assert asked(wire, "cost").status == 200


def test_queries_are_counted_and_logged_once(server: Server, wire: Wire) -> None:
    log = server.data_dir / "server.log"
    before = log.read_text().count('"event": "fleet query"')
    assert asked(wire, "cost").status == 200
    assert asked(wire, "why").status == 422
    lines = [json.loads(line) for line in log.read_text().splitlines() if '"event": "fleet query"' in line][
        before:
    ]
    assert [(line["ask"], line["outcome"]) for line in lines] == [("cost", "answered"), ("why", "refused")]
    told = wire.get("/metrics").raw.decode()
    assert 'lattice_fleet_questions_total{ask="why",outcome="refused"} 1.0' in told
    assert 'lattice_fleet_question_seconds_count{ask="cost"}' in told


def test_queries_are_in_openapi_and_not_in_discovery(wire: Wire) -> None:
    document = wire.get("/openapi/v3/apis/lattice.dev/v1alpha1").value
    assert f"{ROOT}/plan" in document["paths"]
    found = wire.get("/apis/lattice.dev/v1alpha1").value["resources"]
    assert not [each for each in found if each["name"].startswith("fleet")]


@pytest.mark.parametrize(
    ("number", "busy"),
    [
        pytest.param(signal.SIGTERM, False, id="asked to end"),
        pytest.param(signal.SIGTERM, True, id="asked to end in the middle of a question"),
        pytest.param(signal.SIGINT, True, id="interrupted in the middle of a question"),
        pytest.param(signal.SIGKILL, False, id="killed"),
    ],
)
def test_query_worker_exits_with_its_server(tmp_path: Path, number: signal.Signals, busy: bool) -> None:
    server = start(tmp_path / "data")
    try:
        wire = Wire(server.kubeconfig)
        pid = worker(server, wire)
        if busy:
            os.kill(pid, signal.SIGSTOP)
            with ThreadPoolExecutor(1) as threads:
                lost = threads.submit(_ignored, wire)
                time.sleep(ARRIVAL)
                server.stop(number)
                lost.result()
        else:
            server.stop(number)
        wait_until_gone(pid)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()
        if server.process.stdout:
            server.process.stdout.close()


def _ignored(wire: Wire) -> None:
    try:
        asked(wire, "cost")
    except (OSError, http.client.HTTPException):  # the server goes away in the middle of it
        return


def test_price_file_is_used_and_reloaded_on_change(tmp_path: Path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("provider,region,instance_type,usd_per_hour\naws,us-east-1,m5.xlarge,1.00\n")
    with running_server(tmp_path / "data", "--prices", str(prices)) as server:
        pool = {"name": "p", "provider": {"type": "aws", "region": "us-east-1"}, "nodeClasses": ["m"]}
        for each in (_class(), _pool(pool), _service()):
            assert server.lattice("apply", "-f", "-", stdin=json.dumps(each)).returncode == 0
        wire = Wire(server.kubeconfig)
        # Without the services controller no machine is bought: the cost is that of a plan.
        planned = {"manifests": [_service()]}
        assert asked(wire, "cost", **planned).value["total"]["hourly"] == "1"
        assert str(prices) in json.dumps(asked(wire, "cost", **planned).value["prices"])
        prices.write_text(prices.read_text().replace("1.00", "2.50"))
        assert asked(wire, "cost", **planned).value["total"]["hourly"] == "2.5"
        mine = {"csv": prices.read_text().replace("2.50", "7"), "source": "mine.csv", "asOf": "2026-01-02"}
        told = asked(wire, "cost", prices=[mine], **planned).value
        assert (told["total"]["hourly"], "2026-01-02" in json.dumps(told["prices"])) == ("7", True)
        prices.unlink()
        assert asked(wire, "cost").status == 503


def _class() -> dict[str, Any]:
    spec = {"providers": {"aws": {"instanceType": "m5.xlarge"}}, "resources": {"cores": 4, "memoryGi": 16}}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeNodeClass",
        "metadata": {"name": "m"},
        "spec": spec,
    }


def _pool(spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticePool",
        "metadata": {"name": spec.pop("name")},
        "spec": spec,
    }


def _service() -> dict[str, Any]:
    spec = {
        "containers": {"main": {"image": "nginx"}},
        "placement": {"resources": {"cores": 1, "memoryGi": 1}},
        "replicas": {"min": 1},
    }
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": "web"},
        "spec": spec,
    }


def test_missing_price_file_prevents_startup(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no\.csv"):
        start(tmp_path / "data", "--prices", str(tmp_path / "no.csv"))
