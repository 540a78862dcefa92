"""A node that shares its machine reports the usage of its own workloads only."""

import pytest
from build.agent_world import a_leader, a_sleeping_workload, an_agent_node, applied
from build.virtual import VirtualClock

from lattice.agent.host.runtime_protocol import Usage
from lattice.agent.runtimes.fake import Behaviour
from lattice.presence import Usage as Heard


@pytest.mark.parametrize(
    ("is_part", "used"),
    [(False, Heard(1900, 5 << 30, 7)), (True, Heard(250, 1 << 20, 3))],
    ids=["the whole", "a part"],
)
async def test_shared_machine_reports_own_workloads_only(is_part: bool, used: Heard) -> None:
    clock = VirtualClock()
    async with a_leader(clock, 10.0, "n1") as leader:
        await leader.add(a_sleeping_workload())
        await leader.bind("web", applied("n1"))
        await clock.advance(0.1)
        node = an_agent_node(clock, {"leader:7444": leader})
        node.machine.behaviours["default/web"] = Behaviour(exits_after=60, uses=Usage(250, 1 << 20, 3))
        node.agent.node_usage, node.agent.shares_machine = lambda: Usage(1900, 5 << 30, 7), is_part
        node.start()
        await clock.advance(25)
        assert leader.context is not None
        heard = leader.context.presence.get("n1")
        assert heard is not None
        assert heard.usage == used
        assert heard.workload_usage["default/web"] == Heard(250, 1 << 20, 3)
        await node.kill()
