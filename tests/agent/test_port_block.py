"""Port blocks of agents on one machine: each agent has its own block, and a block with a listening port is
not reassigned."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from lattice.agent.port_block import BLOCK_SIZE, FIRST_PORT, LAST_PORT, PortBlock, listening_ports

STARTS = range(FIRST_PORT, LAST_PORT, BLOCK_SIZE)
AGENT = "import sys, time; from pathlib import Path; from lattice.agent.port_block import PortBlock; block = PortBlock(Path(sys.argv[1])); print(*block.port_range, flush=True); time.sleep(600)"


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    return tmp_path


@contextmanager
def a_block(folder: Path) -> Iterator[tuple[int, int]]:
    block = PortBlock(folder)
    try:
        yield block.port_range
    finally:
        block.close()


def killed_agent(folder: Path) -> tuple[int, int]:
    """The port block of an agent that was just killed."""
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        first, last = map(int, process.stdout.readline().split())
        process.kill()
    return first, last


@contextmanager
def listening(number: int, kind: int = socket.SOCK_STREAM, host: str = "127.0.0.1") -> Iterator[None]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind) as taken:
        taken.bind((host, number))
        if kind == socket.SOCK_STREAM:
            taken.listen()
        yield


def test_agents_keep_distinct_port_blocks(folders: Path) -> None:
    with a_block(folders / "a") as one, a_block(folders / "b") as two:
        assert one != two
        assert {(each[0] - FIRST_PORT) % BLOCK_SIZE for each in (one, two)} == {0}
    with a_block(folders / "b") as again:
        assert again == two


@pytest.mark.parametrize(
    ("kind", "host"),
    [
        pytest.param(socket.SOCK_STREAM, "127.0.0.1", id="tcp"),
        pytest.param(socket.SOCK_STREAM, "::1", id="tcp over IPv6"),
        pytest.param(socket.SOCK_DGRAM, "127.0.0.1", id="udp"),
    ],
)
def test_block_with_listening_port_is_not_reassigned(folders: Path, kind: int, host: str) -> None:
    first, last = killed_agent(folders / "a")
    with ExitStack() as stack:
        try:
            stack.enter_context(listening(last, kind, host))
        except OSError:
            pytest.skip(f"this machine has no {host}")
        with a_block(folders / "b") as other:
            assert other[0] != first
        with a_block(folders / "a") as again:
            assert again == (first, last), "what listens there is its own"


def test_unused_block_of_killed_agent_is_reassigned(folders: Path) -> None:
    first, last = killed_agent(folders / "a")
    (folders / "b" / "ports").write_text(str(first))
    with a_block(folders / "b") as other:
        assert other == (first, last)
        with a_block(folders / "a") as again:
            assert again != other, "another agent has it"


def test_unowned_block_is_taken_when_all_have_listeners(
    folders: Path,
) -> None:
    heard = [frozenset(STARTS)]
    block = PortBlock(folders / "a", lambda: heard[0])
    other = PortBlock(folders / "b", lambda: heard[0])
    try:
        assert block.port_range[1] - block.port_range[0] == BLOCK_SIZE - 1
        assert other.port_range != block.port_range
    finally:
        block.close()
        other.close()


def test_listening_ports_are_found() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as caller,
    ):
        found = listening_ports()
        assert server.getsockname()[1] in found
        assert caller.getsockname()[1] not in found, "a client port does not listen"
