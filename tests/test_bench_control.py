"""The benchmark of the control plane detects invalid bindings and missed targets."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench import control, control_place, control_rest
from bench.control_check import check
from bench.control_site import NODES, Object
from bench.control_watch import Bindings
from bench.report import Report

ROOM = {"cpu": 400, "memory": 4 << 30, "workloads": 3}


def a_node_row(name: str, workloads: int) -> Object:
    return {"metadata": {"name": name}, "status": {"allocatable": ROOM, "workloads": workloads}}


def a_workload_on_port(name: str, node: str, port: int) -> Object:
    binding = {"binding": {"node": node}} if node else {}
    return {"metadata": {"name": name}, "status": {**binding, "allocatedPorts": {"http": port}}}


class Board:
    """What a server would answer."""

    def __init__(self, nodes: list[Object], workloads: list[Object]) -> None:
        self.nodes, self.workloads = nodes, workloads

    def everything(self, path: str) -> list[Object]:
        return self.nodes if path == NODES else self.workloads


PAIR = [a_workload_on_port("w1", "n1", 1), a_workload_on_port("w2", "n1", 2)]


@pytest.mark.parametrize(
    ("nodes", "workloads", "complaint"),
    [
        pytest.param([a_node_row("n1", 2)], PAIR, "", id="all is well"),
        pytest.param(
            [a_node_row("n1", 1)],
            PAIR[:1],
            "1 were acknowledged and are not there: ['w2']",
            id="an acknowledged one is lost",
        ),
        pytest.param(
            [a_node_row("n1", 1)],
            [PAIR[0], a_workload_on_port("w2", "", 2)],
            "w2 is not bound",
            id="one is not bound",
        ),
        pytest.param(
            [a_node_row("n1", 1)],
            [PAIR[0], a_workload_on_port("w2", "n2", 2)],
            "which is not there",
            id="its node is not there",
        ),
        pytest.param([a_node_row("n1", 1)], PAIR, "n1 says 1 and has 2", id="the node counts otherwise"),
        pytest.param(
            [a_node_row("n1", 2)],
            [PAIR[0], a_workload_on_port("w2", "n1", 1)],
            "given twice: [1]",
            id="a port is given twice",
        ),
        pytest.param(
            [a_node_row("n1", 4)],
            [*PAIR, *(a_workload_on_port(f"w{n}", "n1", n) for n in (3, 4))],
            "4 workloads on n1",
            id="too many",
        ),
        pytest.param(
            [a_node_row("n1", 2)],
            [a_workload_on_port("w1", "n1", 1), a_workload_on_port("w2", "n1", 2)],
            "",
            id="the same again is no other",
        ),
    ],
)
def test_placement_check(nodes: list[Object], workloads: list[Object], complaint: str) -> None:
    bindings: Any = Bindings(None, 0)  # type: ignore[arg-type]
    bindings.seen = {each["metadata"]["name"]: (0.0, "n1") for each in PAIR if each in workloads}
    site: Any = Board(nodes, workloads)
    if not complaint:
        assert check(site, ["w1", "w2"], bindings) == 2
        return
    with pytest.raises(AssertionError) as raised:
        check(site, ["w1", "w2"], bindings)
    assert complaint in str(raised.value)


@pytest.mark.parametrize(
    ("lines", "moved"),
    [
        pytest.param([b'{"node":"n1"}', b'{"node":"n1"}'], [], id="same binding reported twice"),
        pytest.param([b'{"node":"n1"}', b'{"node":"n2"}'], ["w"], id="bound to another node"),
        pytest.param([b'{"node":"n1"}', b"null"], ["w"], id="its node was taken away"),
    ],
)
def test_double_binding_is_detected(lines: list[bytes], moved: list[str]) -> None:
    bindings = Bindings(None, 0)  # type: ignore[arg-type]
    for line in lines:
        told = b'{"type":"MODIFIED","object":{"metadata":{"name":"w"},"status":{"binding":%b}}}' % line
        bindings.note(told, 1.0)
    assert (bindings.seen, bindings.moved) == ({"w": (1.0, "n1")}, moved)


@pytest.mark.parametrize(
    ("measured", "exit_code", "words"),
    [
        pytest.param(11.0, 1, "1 aims missed", id="missed"),
        pytest.param(10.0, 0, "every aim reached", id="just enough"),
        pytest.param(None, 1, "not measured: 7 agents: a thing", id="not measured"),
    ],
)
def test_missed_target_fails_the_run(
    measured: float | None,
    exit_code: int,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def part(report: Report, agents: control_rest.Size, _: object, folder: Path) -> None:
        report.begin(f"{agents.agents} agents")
        report.add("a thing", measured, "ms", at_most=10.0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(control.PARTS, "rest", part)
    assert control.main(["--quick", "--only", "rest", "--agents", "7"]) == exit_code
    said = capsys.readouterr().out
    assert words in said
    assert "7 agents" in said


def test_run_with_missing_figures_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Report, "save", lambda report, name: kept.append(name))
    for value in (None, 1.0):
        parts = {"rest": lambda report, *_, value=value: report.add("a thing", value, "ms")}
        monkeypatch.setattr(control, "PARTS", parts)
        control.main([])
    assert kept == ["control"], "only the one that was whole"


async def test_requests_are_sent_on_schedule_without_waiting() -> None:
    count = 20
    seen, all_seen = 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
                seen += 1
                if seen == count:
                    all_seen.set()
                await all_seen.wait()  # a client that waits for an answer before the next request would hang
                writer.write(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        at = SimpleNamespace(host="127.0.0.1", port=server.sockets[0].getsockname()[1], tls=None)
        opened = asyncio.open_connection
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", lambda host, port, **_: opened(host, port))
            site: Any = SimpleNamespace(at=at)
            due, result = await asyncio.wait_for(
                control_place._steadily(site, [f"w{n}" for n in range(count)], 1000.0), 20
            )
    assert len(result.latencies) == count
    assert [round(1000 * (when - due["w0"])) for when in due.values()] == list(range(count)), (
        "as planned, not as it went"
    )
