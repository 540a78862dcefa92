"""A whole agent on a simulated machine in virtual time: orders, restarts, leader changes, partitions and
probes."""

from typing import Any

import msgspec
import pytest
from build.agent_world import (
    FOREVER,
    REVISION,
    Leader,
    Node,
    a_leader,
    a_sleeping_workload,
    an_agent_node,
    applied,
    leading_server,
    running,
)
from build.virtual import VirtualClock

from lattice.agent.host.runtime_protocol import Failure, Instance, InstanceId
from lattice.agent.plan import Assignment
from lattice.agent.runtimes.fake import Behaviour
from lattice.agent.session import FAILURES_PER_DISCOVERY
from lattice.errors import Full
from lattice.kinds.container import Container, Disconnect, ExecProbe, Probe, Probes
from lattice.presence import LastHeartbeat
from lattice.server.access.node_certificates import NodeIdentity
from lattice.store.protocol import Key
from lattice.wire import agent_pb2 as pb

HOME = "leader:7444"


def heard(leader: Leader, node: str = "n1") -> LastHeartbeat:
    assert leader.context is not None
    found = leader.context.presence.get(node)
    assert found is not None
    return found


def state(leader: Leader, path: str = "default/web", node: str = "n1") -> tuple[str, int, bool, str] | None:
    spoken = heard(leader, node).workloads.get(path)
    return spoken and (spoken.state, spoken.run, spoken.ready, spoken.failure_reason)


async def order(leader: Leader, clock: VirtualClock, name: str = "web", run: int = 1, **rest: Any) -> None:
    if not await leader.store.get(_key(name)):
        await leader.add(a_sleeping_workload(name, **rest))
    await leader.bind(name, applied("n1", run=run))
    await clock.advance(2)


def _key(name: str) -> Key:
    return Key("latticeworkloads.lattice.dev", "default", name)


def starts(node: Node) -> list[str]:
    return [str(event.instance_id.uid) for event in node.machine.history if event.action == "start"]


async def test_agent_runs_orders_and_reports() -> None:
    async with leading_server("n1") as (leader, clock), running(an_agent_node(clock, {HOME: leader})) as node:
        await clock.advance(1)
        assert heard(leader).has_full_report
        await order(leader, clock)
        assert state(leader) == ("Running", 1, True, "")
        assert heard(leader).applied_sequence == 2
        assert starts(node) == ["uid-web"]
        assert [assignment.workload for assignment in node.memory.state.wanted] == ["default/web"]
        await leader.bind("web", applied("n1", action="Delete"))
        await clock.advance(3)
        assert state(leader) is None
        assert node.machine.live_instances() == []


async def test_failed_workload_restarts_on_new_run_only() -> None:
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader})
        node.machine.behaviours["default/web"] = Behaviour(exits_after=5, exit_code=3, prints="one\ntwo\n")
        async with running(node):
            await order(leader, clock)
            await clock.advance(20)
            assert state(leader) == ("Failed", 1, False, "RUNTIME_ERROR")
            assert heard(leader).workloads["default/web"].log == "one\ntwo\n"
            assert heard(leader).workloads["default/web"].failure_message == "exited with code 3"
            assert len(starts(node)) == 1
            await order(leader, clock, run=2)
            assert state(leader) == ("Running", 2, True, "")
            assert len(starts(node)) == 2


async def test_restarted_agent_adopts_instances() -> None:
    async with leading_server("n1") as (leader, clock):
        first = an_agent_node(clock, {HOME: leader})
        async with running(first):
            await order(leader, clock)
        await clock.advance(30)
        assert not heard(leader).is_connected
        async with running(an_agent_node(clock, {HOME: leader}, former=first)) as second:
            await clock.advance(2)
            assert state(leader) == ("Running", 1, True, "")
            assert len(starts(second)) == 1


async def test_restarted_agent_waits_for_orders() -> None:
    async with leading_server("n1") as (leader, clock):
        first = an_agent_node(clock, {HOME: leader})
        async with running(first):
            await order(leader, clock)
            await order(leader, clock, "api")
        forgetful = msgspec.structs.replace(
            first.memory.state, wanted=()
        )  # its last orders were not written to disk
        first.memory.state = forgetful
        second = an_agent_node(clock, {HOME: leader}, former=first)
        second.net.is_cut = True
        async with running(second):
            await clock.advance(60)
            assert len(second.machine.live_instances()) == 2
            await leader.bind("api", applied("n1", action="Delete"))
            second.net.is_cut = False
            await clock.advance(30)
            assert [instance.uid for instance in second.machine.live_instances()] == ["uid-web"]


async def test_agent_reports_failure_after_power_loss() -> None:
    async with leading_server("n1") as (leader, clock):
        first = an_agent_node(clock, {HOME: leader})
        async with running(first):
            await order(leader, clock)
        first.machine.lose_power()
        async with running(an_agent_node(clock, {HOME: leader}, former=first)) as second:
            await clock.advance(20)
            assert state(leader) == ("Failed", 1, False, "RUNTIME_ERROR")
            assert second.machine.live_instances() == []


async def test_agent_follows_new_leader_without_restart() -> None:
    async with leading_server("n1") as (leader, clock):
        other = Leader(leader.store, clock)
        servers = {HOME: leader, "other:7444": other}
        async with running(an_agent_node(clock, servers, addresses=[HOME])) as node:
            await order(leader, clock)
            leader.step_down("other:7444")
            assert (await leader.store.campaign("controllers", "other", 15.0)) is None
            await clock.advance(16)  # the lease expires; until then no server leads
            await other.lead("other")
            await clock.advance(25)
            assert state(other) == ("Running", 1, True, "")
            assert heard(other).is_connected
            assert node.memory.state.term == 2
            assert len(starts(node)) == 1
            assert node.agent.addresses[0] == "other:7444"
        await other.close()


async def test_stale_redirect_to_silent_leader_is_ignored() -> None:
    async with leading_server("n1") as (leader, clock):
        other = Leader(leader.store, clock)
        other.elsewhere = HOME
        node = an_agent_node(clock, {HOME: leader, "other:7444": other}, addresses=[HOME, "other:7444"])
        async with running(node):
            await clock.advance(20)
            assert heard(leader).is_connected
            del node.net.servers[HOME]
            node.net.cut()
            node.net.is_cut = False
            before = len(node.net.dialled)
            assert leader.context is not None
            await leader.store.resign(leader.context.term)
            leader.step_down()
            await clock.advance(4)
            asked = node.net.dialled[before:]
            assert asked.count(HOME) == 1
            assert asked.count("other:7444") >= 2
            await other.lead("other")
            await clock.advance(10)
            assert heard(other).is_connected
            node.net.servers[HOME] = leader
            assert other.context is not None
            await leader.store.resign(other.context.term)
            await leader.lead()
            other.step_down(HOME)
            await clock.advance(1)
            assert heard(leader).is_connected, "what was silent once is not doubted for ever"
        await other.close()


async def test_recreated_node_is_rejoined() -> None:
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader}, key="a-former-key")

        async def rejoin() -> bool:
            node.net.peer = NodeIdentity("n1", "key-n1", FOREVER)
            return True

        node.agent.rejoin = rejoin
        async with running(node):
            await clock.advance(3)
            assert heard(leader).is_connected


async def test_hundred_agents_reconnect_within_30_seconds() -> None:
    names = [f"n{number}" for number in range(100)]
    async with leading_server(*names) as (leader, clock):
        other = Leader(leader.store, clock)
        servers = {HOME: leader, "other:7444": other}
        nodes = [an_agent_node(clock, servers, name, addresses=[HOME]) for name in names]
        for node in nodes:
            node.start()
        await clock.advance(5)
        assert len(leader.links.sessions) == 100
        leader.step_down()
        await clock.advance(15)
        assert leader.links.sessions == {}
        await other.lead("other")
        leader.elsewhere = "other:7444"
        begin = [len(node.net.dialled) for node in nodes]
        await clock.advance(30)
        assert len(other.links.sessions) == 100
        assert other.context is not None
        assert max(other.context.presence.heartbeat_age(name) for name in names) < 40
        assert max(len(node.net.dialled) - before for node, before in zip(nodes, begin, strict=True)) <= 6
        for node in nodes:
            await node.kill()
        await other.close()


@pytest.mark.parametrize(
    ("disconnect", "survives"),
    [
        pytest.param(Disconnect(), True, id="keep"),
        pytest.param(Disconnect(policy="stop", stop_after="60s"), False, id="stop"),
    ],
)
async def test_disconnect_policy_keeps_or_stops(disconnect: Disconnect, survives: bool) -> None:
    async with leading_server("n1") as (leader, clock), running(an_agent_node(clock, {HOME: leader})) as node:
        await order(leader, clock, disconnect=disconnect)
        last = heard(leader).received_at
        node.net.cut()
        await clock.advance(200)
        assert bool(node.machine.live_instances()) == survives
        if not survives:
            stop = next(event.at for event in node.machine.history if event.action == "stop")
            assert stop - last <= 60.0
            assert stop - last >= 49.0, "not before a heartbeat's worth of its time"
        node.net.is_cut = False
        await clock.advance(30)
        assert state(leader) == (
            ("Running", 1, True, "") if survives else ("Failed", 1, False, "DISCONNECTED")
        )


async def test_probes_decide_ready_and_unhealthy() -> None:
    probe = Probe(exec=ExecProbe(command=("check",)), period_seconds=1, failure_threshold=2)
    container = Container(
        command=("serve",),
        probes=Probes(
            readiness=probe,
            liveness=Probe(exec=probe.exec, period_seconds=5, failure_threshold=2, initial_delay_seconds=10),
        ),
    )
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader})
        node.machine.behaviours["default/web"] = Behaviour(ready_after=5, unhealthy_after=60)
        async with running(node):
            await order(leader, clock, containers={"main": container})
            assert state(leader) == ("Running", 1, False, "")
            await clock.advance(8)
            assert state(leader) == ("Running", 1, True, "")
            await clock.advance(70)
            assert state(leader) == ("Failed", 1, False, "UNHEALTHY")
            assert node.machine.live_instances() == []
            node.machine.behaviours["default/web"] = Behaviour()
            await order(leader, clock, run=2)
            await clock.advance(5)
            assert state(leader) == ("Running", 2, True, "")


async def test_slow_stop_blocks_no_other_workload() -> None:
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader})
        node.machine.behaviours["default/slow"] = Behaviour(stop_takes=25)
        async with running(node):
            await order(leader, clock, "slow")
            await leader.bind("slow", applied("n1", action="Delete"))
            await order(leader, clock, "quick")
            assert state(leader, "default/quick") == ("Running", 1, True, "")
            assert state(leader, "default/slow") == ("Running", 1, False, "")
            await clock.advance(30)
            assert state(leader, "default/slow") is None


async def test_workload_is_stopped_once_at_a_time() -> None:
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader})
        node.machine.behaviours["default/web"] = Behaviour(stop_takes=20)
        stop, asked = node.agent.executor.runtime.stop, []

        async def counted(which: InstanceId, grace: float, because: Failure | None = None) -> Instance | None:
            asked.append(which)
            return await stop(which, grace, because)

        node.agent.executor.runtime.stop = counted  # type: ignore[method-assign]
        async with running(node):
            await order(leader, clock)
            await leader.bind("web", applied("n1", action="Delete"))
            await clock.advance(30)
            assert len(asked) == 1


async def test_failed_container_restarts_its_workload() -> None:
    two = {"main": Container(command=("serve",)), "side": Container(command=("help",))}
    async with leading_server("n1") as (leader, clock):
        node = an_agent_node(clock, {HOME: leader})
        async with running(node):
            await order(leader, clock, containers=two)
            assert len(node.machine.live_instances()) == 2
            node.machine.end(
                next(instance for instance in node.machine.live_instances() if instance.container == "side"),
                killed=True,
            )
            copy = next(copy for which, copy in node.machine.processes.items() if which.container == "side")
            failure = Failure("INSUFFICIENT_RESOURCES", "killed: memory limit of 4096 bytes exceeded")
            copy.outcome = (137, "SIGKILL", failure)
            await clock.advance(15)
            assert state(leader) == ("Failed", 1, False, "INSUFFICIENT_RESOURCES")
            assert node.machine.live_instances() == []
            await order(leader, clock, run=2)
            assert state(leader) == ("Running", 2, True, "")


async def test_invalid_order_fails_alone() -> None:
    async with leading_server("n1") as (leader, clock), running(an_agent_node(clock, {HOME: leader})) as node:
        await clock.advance(1)
        good = pb.Assignment(
            workload="default/web",
            uid="u1",
            state="Running",
            revision=REVISION,
            run=1,
            containers=b'{"main":{"command":["x"]}}',
            disconnect="keep",
            stop_after_ms=90000,
        )
        bad = pb.Assignment(
            workload="default/odd",
            uid="u2",
            state="Running",
            revision=REVISION,
            run=7,
            containers=b'{"main":{"newer":1}}',
            disconnect="keep",
        )
        node.agent.executor.accept_orders(pb.Orders(term=1, number=9, assignments=[good, bad]))
        await clock.advance(3)
        assert state(leader) == ("Running", 1, True, "")
        assert state(leader, "default/odd") == ("Failed", 7, False, "INVALID_SPEC")


async def test_full_disk_does_not_prevent_stops() -> None:
    async with leading_server("n1") as (leader, clock), running(an_agent_node(clock, {HOME: leader})) as node:
        await order(leader, clock)

        def full(wanted: tuple[Assignment, ...], term: int) -> None:
            raise Full("no disk space to write the agent's state")

        kept, node.memory.save_assignments = node.memory.save_assignments, full  # type: ignore[method-assign]
        await leader.bind("web", applied("n1", action="Delete"))
        await clock.advance(3)
        assert node.machine.live_instances() == []
        assert len(node.memory.state.wanted) == 1
        node.memory.save_assignments = kept  # type: ignore[method-assign]
        await clock.advance(2)
        assert node.memory.state.wanted == (), "written down once there is room"


async def test_server_discovery_is_rate_limited() -> None:
    clock = VirtualClock()
    node, asked = an_agent_node(clock, {}, addresses=["a", "b"]), []

    async def look_up() -> list[str]:
        asked.append(clock.monotonic())
        return ["c", "d"]

    node.agent.discover_addresses = look_up
    async with running(node):
        await clock.advance(100)
    assert len(asked) <= len(node.net.dialled) / FAILURES_PER_DISCOVERY
    assert {"c", "d"} <= set(node.net.dialled), "every server that answered is tried"


async def test_reconnect_interval_follows_heartbeat() -> None:
    clock = VirtualClock()
    async with a_leader(clock, 0.5, "n1") as leader, running(an_agent_node(clock, {HOME: leader})) as node:
        await clock.advance(2)
        node.net.cut()
        await clock.advance(30)
        node.net.is_cut = False
        await clock.advance(1)
        assert heard(leader).is_connected
