"""Machines of the fake provider survive a restart through its state file."""

import asyncio
from pathlib import Path

from build.machine_specs import a_machine_spec
from build.virtual import VirtualClock

from lattice.providers.fake import FakeProvider


async def test_restarted_provider_finds_its_machines(tmp_path: Path) -> None:
    note, clock = tmp_path / "machines" / "hand.json", VirtualClock()
    first = FakeProvider(clock, "hand", state_file=note)
    await asyncio.gather(
        *(first.create(a_machine_spec(node)) for node in ("n1", "n2", "n3")), clock.advance(1)
    )
    first.end_machine("n2", "its disk broke")
    await asyncio.gather(first.delete("n3"), clock.advance(1))
    again = FakeProvider(clock, "hand", state_file=note)
    assert [(machine.node, machine.state, machine.message) for machine in await again.list()] == [
        ("n1", "Running", ""),
        ("n2", "Ended", "its disk broke"),
    ]
