"""The port block of a node: agents on one machine claim disjoint port blocks without coordination."""

import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from pathlib import Path

from lattice.agent.state_file import write_atomically

# Below the kernel's range of ports for outgoing connections.
FIRST_PORT, LAST_PORT, BLOCK_SIZE = 20_000, 29_999, 200
# States in the socket tables of the kernel; UDP has no listening state.
TCP_LISTEN_STATE, UDP_BOUND_STATE = "0A", "07"
SOCKET_TABLES = {
    "tcp": TCP_LISTEN_STATE,
    "tcp6": TCP_LISTEN_STATE,
    "udp": UDP_BOUND_STATE,
    "udp6": UDP_BOUND_STATE,
}


def listening_ports(folder: Path = Path("/proc/net")) -> frozenset[int]:
    """The ports on which a process of this machine listens; empty where the kernel has no socket tables."""
    ports: set[int] = set()
    for table, state in SOCKET_TABLES.items():
        try:
            lines = (folder / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if words[3] == state:
                ports.add(int(words[1].rpartition(":")[2], 16))
    return frozenset(ports)


class PortBlock:
    """A claim of a port block, held until `close` or the exit of the process. The claim is an abstract Unix
    socket.

    Workloads of a killed agent may still listen in its block: other agents prefer blocks in which no process
    listens.
    """

    def __init__(self, folder: Path, listening: Callable[[], Collection[int]] = listening_ports) -> None:
        self._block_file = folder / "ports"
        # Without a free block the agent uses the full port range without a claim.
        self.port_range = FIRST_PORT, LAST_PORT
        self._claim: socket.socket | None = None
        for start in self._choices(listening):
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # The leading null byte names an abstract socket, which needs no file.
                claim.bind(f"\0lattice-agent-ports-{start}")
            except OSError:
                claim.close()
                continue
            # Saved, so that the next agent process of this folder claims the same block.
            write_atomically(self._block_file, str(start).encode())
            self.port_range, self._claim = (start, start + BLOCK_SIZE - 1), claim
            break

    def _choices(self, listening: Callable[[], Collection[int]]) -> Iterator[int]:
        """The blocks in order of preference; a block with listening ports comes last but stays possible,
        since foreign programs may listen in every block."""
        blocks = range(FIRST_PORT, LAST_PORT, BLOCK_SIZE)
        # The previous block comes first: workloads that survived the agent listen there.
        previous = None
        with suppress(OSError, ValueError):
            previous = int(self._block_file.read_text())
        if previous is not None and previous in blocks:
            yield previous
        occupied = {FIRST_PORT + (port - FIRST_PORT) // BLOCK_SIZE * BLOCK_SIZE for port in listening()}
        yield from sorted(blocks, key=lambda start: start in occupied)

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
