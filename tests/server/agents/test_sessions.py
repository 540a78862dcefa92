"""Sessions of agents with the leader, message by message, in virtual time."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from build.agent_world import REVISION, Leader, a_registration, a_sleeping_workload, applied, leading_server
from build.scripted_agent import ScriptedAgent, peer
from build.virtual import VirtualClock, settle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.errors import Unavailable
from lattice.kinds.container import Container, Disconnect, Port
from lattice.kinds.workload import Binding, DesiredRun
from lattice.server.agents.join import node_key
from lattice.store.protocol import Delete
from lattice.wire import agent_pb2 as pb
from lattice.wire.connection import PROTOCOL_VERSION


async def bound(leader: Leader, clock: VirtualClock, name: str, node: str, **rest: Any) -> None:
    await leader.add(a_sleeping_workload(name, **rest))
    await leader.bind(name, applied(node))
    await clock.advance(0.1)


def states(orders: pb.Orders) -> dict[str, str]:
    return {assignment.workload: assignment.state for assignment in orders.assignments}


async def test_full_orders_first_then_deltas() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "web", "n1")
        await leader.add(a_sleeping_workload("later"))
        agent = ScriptedAgent(leader, peer())
        welcome, first = await agent.welcomed()
        assert (welcome.welcome.term, welcome.welcome.heartbeat, welcome.welcome.node) == (1, 10.0, "n1")
        assert (first.orders.number, first.orders.is_whole, states(first.orders)) == (
            1,
            True,
            {"default/web": "Running"},
        )
        await leader.bind("later", applied("n1"))
        await clock.advance(0.1)
        [second] = await agent.orders()
        assert (second.number, second.is_whole, states(second), list(second.dropped)) == (
            2,
            False,
            {"default/later": "Running"},
            [],
        )
        await leader.bind("web", applied("n1", action="Delete"))
        await clock.advance(0.1)
        [third] = await agent.orders()
        assert (third.number, states(third), list(third.dropped)) == (3, {}, ["default/web"])


async def test_order_carries_ports_limits_and_environment() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        leader.links.environment = lambda workload: {"DB_URL": f"tcp://10.0.0.7:{workload.spec.slot}"}
        container = Container(command=("serve",), ports=(Port(name="http"),))
        await leader.add(
            a_sleeping_workload(
                containers={"main": container},
                limits={"cpu": "500m"},
                disconnect=Disconnect(policy="stop", stop_after="30s"),
            )
        )
        await leader.bind("web", applied("n1", run=3, allocated_ports={"http": 20001}))
        await clock.advance(0.1)
        agent = ScriptedAgent(leader, peer())
        [order] = (await agent.welcomed())[1].orders.assignments
        assert (order.uid, order.revision, order.run, dict(order.ports)) == (
            "uid-web",
            REVISION,
            3,
            {"http": 20001},
        )
        assert (order.cpu_limit, order.HasField("memory_limit"), dict(order.env)) == (
            500,
            False,
            {"DB_URL": "tcp://10.0.0.7:0"},
        )
        assert (order.disconnect, order.stop_after_ms) == ("stop", 30_000)
        leader.links.environment = lambda workload: {"DB_URL": "tcp://10.0.0.8:0"}
        leader.links.mark_changed(["default/web"])
        await settle()
        [changed] = await agent.orders()
        assert dict(changed.assignments[0].env) == {"DB_URL": "tcp://10.0.0.8:0"}


async def test_irrelevant_status_change_sends_no_order() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "web", "n1")
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        await leader.bind("web", applied("n1", actual_state="Running", ready=True))
        await clock.advance(0.1)
        assert await agent.orders() == []


async def test_node_receives_only_its_own_workloads() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "mine", "n1")
        await bound(leader, clock, "theirs", "n2")
        await leader.add(a_sleeping_workload("former"))
        status = applied("n1")
        status = type(status)(
            binding=Binding(node="n1", uid="an-earlier-node"), retry=status.retry, last_action="Apply"
        )
        await leader.bind("former", status)
        await clock.advance(0.1)
        one, two = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        assert states((await one.welcomed())[1].orders) == {"default/mine": "Running"}
        assert states((await two.welcomed())[1].orders) == {"default/theirs": "Running"}
        await leader.bind("mine", applied("n2"))
        await clock.advance(0.1)
        [taken], [given] = await one.orders(), await two.orders()
        assert (list(taken.dropped), states(given)) == (["default/mine"], {"default/mine": "Running"})


async def test_foreign_report_counts_as_orphan_of_reporter() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "theirs", "n2")
        agent, other = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        await agent.welcomed()
        await other.welcomed()
        report = pb.Report(
            workload="default/theirs",
            uid="uid-theirs",
            state="Failed",
            revision=REVISION,
            run=1,
            failure="INVALID_SPEC",
        )
        await agent.beat(reports=[report], is_whole=True)
        presence = leader.context.presence if leader.context else None
        assert presence is not None
        one, two = presence.get("n1"), presence.get("n2")
        assert one is not None
        assert two is not None
        assert list(one.workloads) == ["default/theirs"]  # seen as an orphan there
        assert two.workloads == {}


def test_node_name_comes_from_certificate_only() -> None:
    names = {
        field.name
        for message in (pb.Hello, pb.Registration, pb.Beat, pb.RenewRequest)
        for field in message.DESCRIPTOR.fields
    }
    assert not {name for name in names if "node" in name or name in ("name", "host", "identity")}


async def test_orders_count_as_applied_once_acknowledged() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "web", "n1")
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        assert leader.context is not None
        presence, wanted = leader.context.presence, DesiredRun("Running", REVISION, 1)
        await agent.beat(1, is_whole=True)
        assert [message.heard.beat for message in await agent.answers()] == [1]
        assert not presence.has_applied("n1", "default/web", wanted)
        await agent.beat(
            2,
            order=1,
            reports=[
                pb.Report(
                    workload="default/web",
                    uid="uid-web",
                    state="Running",
                    revision=REVISION,
                    run=1,
                    ready=True,
                )
            ],
        )
        assert [message.heard.beat for message in await agent.answers()] == [2]
        assert presence.has_applied("n1", "default/web", wanted)
        heard = presence.get("n1")
        assert heard is not None
        assert heard.workloads["default/web"].ready


async def test_follower_redirects_agent_to_leader() -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        leader.step_down("10.0.0.2:7444")
        agent = ScriptedAgent(leader, peer())
        await agent.hello()
        assert [message.elsewhere.address for message in await agent.answers()] == ["10.0.0.2:7444"]
        await agent.ended()


async def test_leader_of_older_term_redirects_agent() -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        agent = ScriptedAgent(leader, peer())
        await agent.hello(term=2)
        assert [message.WhichOneof("said") for message in await agent.answers()] == ["elsewhere"]


async def test_agents_are_redirected_when_term_ends() -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        one, two = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        await one.welcomed()
        await two.welcomed()
        former = leader.context
        leader.context, leader.elsewhere = (
            None,
            "10.0.0.2:7444",
        )  # the lease expired by its own clock; the sessions were not notified
        await one.beat(reports=[pb.Report(workload="default/web", uid="u", state="Running")])
        assert former is not None
        assert former.presence.get("n1").workloads == {}  # type: ignore[union-attr]
        assert [message.WhichOneof("said") for message in await one.answers()] == ["elsewhere"]
        await one.ended()
        assert [message.WhichOneof("said") for message in await two.answers()] == ["elsewhere"]
        await two.ended()


async def test_new_connection_replaces_former() -> None:
    async with leading_server("n1", "n2") as (leader, _clock):
        first, second = ScriptedAgent(leader, peer()), ScriptedAgent(leader, peer())
        await first.welcomed()
        await second.welcomed()
        assert [message.refusal.reason for message in await first.answers()] == ["REPLACED"]
        await first.ended()
        await second.beat()
        assert [message.heard.beat for message in await second.answers()] == [1]
        assert leader.context is not None
        heard = leader.context.presence.get("n1")
        assert heard is not None
        assert heard.is_connected


async def test_connection_ends_when_certificate_expires() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        agent = ScriptedAgent(leader, peer(until=clock.now() + timedelta(seconds=30)))
        await agent.welcomed()
        for number in range(1, 4):
            await clock.advance(9)
            await agent.beat(number)
        await agent.answers()
        await clock.advance(10)
        assert [message.refusal.reason for message in await agent.answers()] == ["EXPIRED"]
        await agent.ended()


async def test_connection_ends_when_node_is_deleted() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        await leader.store.commit([Delete(node_key("n1"))])
        await clock.advance(6)
        assert [message.refusal.reason for message in await agent.answers()] == ["UNKNOWN_NODE"]
        await agent.ended()


async def test_silent_connection_times_out() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        await clock.advance(39)
        assert not agent.serving.done()
        await clock.advance(7)
        await agent.ended()
        assert leader.context is not None
        heard = leader.context.presence.get("n1")
        assert heard is not None
        assert not heard.is_connected


async def test_slow_agent_blocks_no_other_and_gets_latest() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        for name in ("web", "api"):
            await bound(leader, clock, name, "n1" if name == "web" else "n2")
        slow, quick = ScriptedAgent(leader, peer("n1"), room=1), ScriptedAgent(leader, peer("n2"))
        await slow.hello()
        await quick.welcomed()
        for run in range(2, 50):
            await leader.bind("web", applied("n1", run=run))
            await leader.bind("api", applied("n2", run=run))
            await clock.advance(0.1)
            assert [
                assignment.run for orders in await quick.orders() for assignment in orders.assignments
            ] == [run]
            await quick.beat(run)
            assert [message.heard.beat for message in await quick.answers()] == [run]
        line = leader.links.sessions["n1"]
        assert len(line.changed_workloads) <= 1
        runs = [assignment.run for orders in await slow.orders() for assignment in orders.assignments]
        assert runs[-1] == 49
        assert len(runs) <= 3, "missed changes are not sent"


_texts = st.text(max_size=20) | st.sampled_from(
    ["default/web", "default/x", "Running", "Failed", "RUNTIME_ERROR", REVISION]
)
_reports = st.builds(
    pb.Report,
    workload=_texts,
    uid=_texts,
    state=_texts,
    revision=_texts,
    run=st.integers(-5, 5),
    failure=_texts,
    log=_texts,
)
_usages = st.builds(pb.Usage, cpu=st.integers(-(2**63), 2**63 - 1), memory=st.integers(-1, 2**62))
_beats = st.builds(
    pb.Beat,
    number=st.integers(0, 2**64 - 1),
    order=st.integers(0, 2**64 - 1),
    is_whole=st.booleans(),
    reports=st.lists(_reports, max_size=3),
    gone=st.lists(_texts, max_size=3),
    usage=st.none() | _usages,
)
_registrations = st.builds(
    pb.Registration,
    capacity=st.dictionaries(_texts | st.just("cpu"), st.integers(-(2**63), 2**63 - 1), max_size=3),
    labels=st.dictionaries(_texts | st.just("agent.lattice.dev/a"), _texts, max_size=2),
    runtimes=st.lists(_texts | st.just("process"), max_size=2),
    first_port=st.integers(0, 2**32 - 1),
    last_port=st.integers(0, 2**32 - 1),
)
_hellos = st.builds(
    pb.Hello,
    protocol=st.sampled_from([PROTOCOL_VERSION, 0, 9]),
    term=st.integers(0, 3),
    registration=st.just(a_registration()) | _registrations,
)
_words = st.one_of(
    st.builds(pb.FromAgent, hello=_hellos),
    st.builds(pb.FromAgent, beat=_beats),
    st.builds(pb.FromAgent, log=st.builds(pb.LogPiece, id=st.integers(0, 3), text=_texts, end=st.booleans())),
    st.just(pb.FromAgent()),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(_words, max_size=6), is_polite=st.booleans())
async def test_server_survives_any_agent_messages(said: list[pb.FromAgent], is_polite: bool) -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        await bound(leader, clock, "web", "n1")
        rude, good = ScriptedAgent(leader, peer("n1")), ScriptedAgent(leader, peer("n2"))
        await good.welcomed()
        if is_polite:
            await rude.welcomed()
        for message in said:
            with suppress(Unavailable):
                await rude.end.send(message)
            await settle()
        await rude.answers()
        rude.end.close()
        await clock.advance(61)
        assert rude.serving.done()
        rude.serving.result()
        again = ScriptedAgent(leader, peer("n2"))
        await again.welcomed()
        await again.beat()
        assert [message.heard.beat for message in await again.answers()] == [1]
