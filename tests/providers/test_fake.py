"""Machines on paper outlive the server that made them, where they are written down."""

import asyncio
from pathlib import Path

from build.virtual import VirtualClock

from lattice.kinds.node_class import MachineSize
from lattice.providers.fake import FakeProvider
from lattice.providers.protocol import MachineSpec


def a_machine(node: str) -> MachineSpec:
    return MachineSpec(node, "rack-001", "here", "a", "small", MachineSize(1000, 1 << 30, 0, 0, {}))


async def test_restarted_provider_finds_its_machines(tmp_path: Path) -> None:
    note, clock = tmp_path / "machines" / "hand.json", VirtualClock()
    first = FakeProvider(clock, "hand", state_file=note)
    await asyncio.gather(*(first.create(a_machine(node)) for node in ("n1", "n2", "n3")), clock.advance(1))
    first.end_machine("n2", "its disk broke")
    await asyncio.gather(first.delete("n3"), clock.advance(1))
    again = FakeProvider(clock, "hand", state_file=note)
    assert [(each.node, each.state, each.message) for each in await again.list()] == [
        ("n1", "Running", ""),
        ("n2", "Ended", "its disk broke"),
    ]
