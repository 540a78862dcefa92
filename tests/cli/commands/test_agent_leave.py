"""`lattice agent --leave` beside a running agent: the request, and what becomes of it."""

import asyncio
from pathlib import Path

import pytest
from build.agent_world import an_agent_node
from build.virtual import VirtualClock

from lattice.agent.state_file import StateFile
from lattice.cli.commands.agent import LEAVE_FILE, _request_leave, _watch_leave_request
from lattice.errors import Denied

REASON = "the provider of pool lab made this machine: `lattice delete node n1` drains and removes it"


async def test_rejected_request_ends_with_the_reason(tmp_path: Path) -> None:
    running, agent = StateFile(tmp_path), an_agent_node(VirtualClock(), {}).agent
    watch = asyncio.create_task(_watch_leave_request(tmp_path, agent, "n1", is_required=False))
    request = asyncio.create_task(_request_leave(tmp_path))
    try:
        async with asyncio.timeout(20):
            while not agent.is_leaving:
                await asyncio.sleep(0.05)
            # As the session does when the server rejects the request.
            agent.is_leaving, agent.leave_rejection = False, REASON
            with pytest.raises(Denied, match="made this machine"):
                await request
            await asyncio.sleep(1.2)
    finally:
        watch.cancel()
        running.close()
    assert not agent.is_leaving, "a rejected request is not repeated"
    assert (tmp_path / LEAVE_FILE).read_text() == REASON


async def test_agent_that_was_started_to_leave_ends_with_the_reason(tmp_path: Path) -> None:
    agent = an_agent_node(VirtualClock(), {}).agent
    agent.leave_rejection = REASON
    with pytest.raises(Denied, match="made this machine"):
        await _watch_leave_request(tmp_path, agent, "n1", is_required=True)
