"""Which ports may workloads of this node have? Agents on one machine take different blocks, without knowing of one another."""

import socket
from pathlib import Path

from lattice.agent.state import write_whole

FIRST, LAST, BLOCK = 20_000, 29_999, 200  # below what the kernel gives to outgoing connections


class PortBlock:
    """A block of ports, held for as long as this lives. A socket without a file says so; it goes with the process."""

    def __init__(self, folder: Path) -> None:
        self._note = folder / "ports"
        self.range, self._claim = self._take()

    def _take(self) -> tuple[tuple[int, int], socket.socket | None]:
        """The one it had before, else the first that is free; everything, when there are more agents than blocks."""
        starts = [*self._before(), *range(FIRST, LAST, BLOCK)]
        for start in starts:
            claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                claim.bind(f"\0lattice-agent-ports-{start}")
            except OSError:
                claim.close()
                continue
            write_whole(self._note, str(start).encode())
            return (start, start + BLOCK - 1), claim
        return (FIRST, LAST), None

    def _before(self) -> list[int]:
        try:
            start = int(self._note.read_text())
        except (OSError, ValueError):
            return []
        return [start] if start in range(FIRST, LAST, BLOCK) else []

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
