"""Which ports may workloads of this node have? Agents on one machine take different blocks, without knowing of one another."""

import socket
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from lattice.agent.state_file import write_atomically

FIRST_PORT, LAST_PORT, BLOCK_SIZE = 20_000, 29_999, 200  # below what the kernel gives to outgoing connections
TCP_LISTEN_STATE, UDP_BOUND_STATE = (
    "0A",
    "07",
)  # states in the kernel's tables: of TCP, and of UDP, which knows no listening
SOCKET_TABLES = {
    "tcp": TCP_LISTEN_STATE,
    "tcp6": TCP_LISTEN_STATE,
    "udp": UDP_BOUND_STATE,
    "udp6": UDP_BOUND_STATE,
}


def listening_ports(folder: Path = Path("/proc/net")) -> frozenset[int]:
    """Those at which some program of this machine listens; none, where the kernel does not say."""
    return frozenset(
        port for table, state in SOCKET_TABLES.items() for port in _ports_in_state(folder / table, state)
    )


def _ports_in_state(table: Path, state: str) -> Iterator[int]:
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for words in map(str.split, lines):
        if words[3] == state:
            yield int(words[1].rpartition(":")[2], 16)


class PortBlock:
    """A block of ports, held for as long as this lives. A socket without a file says so; it goes with the process.

    What a killed agent ran may still listen in the block that it had: nobody else takes one in which anything listens.
    """

    def __init__(self, folder: Path, heard: Callable[[], Collection[int]] = listening_ports) -> None:
        self._block_file = folder / "ports"
        self.port_range, self._claim = self._take(heard)

    def _take(self, heard: Callable[[], Collection[int]]) -> tuple[tuple[int, int], socket.socket | None]:
        """The one it had before, else the first that is free; everything, when there are more agents than blocks."""
        for start in self._choices(heard):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                claim.bind(f"\0lattice-agent-ports-{start}")
            except OSError:
                claim.close()
                continue
            write_atomically(self._block_file, str(start).encode())
            return (start, start + BLOCK_SIZE - 1), claim
        return (FIRST_PORT, LAST_PORT), None

    def _choices(self, heard: Callable[[], Collection[int]]) -> Iterator[int]:
        """In order of preference; programs that are none of ours may listen in every block, and then that is no reason."""
        yield from self._previous_block()
        noisy = {FIRST_PORT + (port - FIRST_PORT) // BLOCK_SIZE * BLOCK_SIZE for port in heard()}
        yield from sorted(range(FIRST_PORT, LAST_PORT, BLOCK_SIZE), key=lambda start: start in noisy)

    def _previous_block(self) -> list[int]:
        try:
            start = int(self._block_file.read_text())
        except (OSError, ValueError):
            return []
        return [start] if start in range(FIRST_PORT, LAST_PORT, BLOCK_SIZE) else []

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
