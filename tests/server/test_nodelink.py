"""What the server says to an agent, and what it makes of what an agent says: the conversation word by word, in virtual time."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server.links import REVISION, ROLE, Leader, a_node, a_registration, a_workload, applied
from server.speakers import Speaker, peer, play
from store.virtual import VirtualClock, settle

from lattice.errors import Fenced, Unavailable
from lattice.kinds.base import Metadata
from lattice.kinds.container import Container, Disconnect, Port
from lattice.kinds.node import LatticeNode, NodeSpec
from lattice.kinds.nodeclass import ClassResources, LatticeNodeClass, NodeClassSpec
from lattice.kinds.order import Wanted
from lattice.kinds.workload import Binding
from lattice.server.joining import node_key
from lattice.server.signing import Peer
from lattice.store.protocol import Delete
from lattice.wire import agent_pb2 as pb
from lattice.wire.talk import PROTOCOL


async def bound(leader: Leader, clock: VirtualClock, name: str, node: str, **rest: Any) -> None:
    await leader.add(a_workload(name, **rest))
    await leader.bind(name, applied(node))
    await clock.advance(0.1)


def told(orders: pb.Orders) -> dict[str, str]:
    return {each.workload: each.state for each in orders.assignments}


def test_everything_is_told_first_and_then_what_changes() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "web", "n1")
        await leader.add(a_workload("later"))
        agent = Speaker(leader, peer())
        welcome, first = await agent.welcomed()
        assert (welcome.welcome.term, welcome.welcome.heartbeat, welcome.welcome.node) == (1, 10.0, "n1")
        assert (first.orders.number, first.orders.is_whole, told(first.orders)) == (1, True, {"default/web": "Running"})
        await leader.bind("later", applied("n1"))
        await clock.advance(0.1)
        [second] = await agent.orders()
        assert (second.number, second.is_whole, told(second), list(second.dropped)) == (2, False, {"default/later": "Running"}, [])
        await leader.bind("web", applied("n1", action="Delete"))
        await clock.advance(0.1)
        [third] = await agent.orders()
        assert (third.number, told(third), list(third.dropped)) == (3, {}, ["default/web"])

    play(story)


def test_an_order_carries_what_the_node_needs() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        leader.links.environment = lambda workload: {"DB_URL": f"tcp://10.0.0.7:{workload.spec.slot}"}
        container = Container(command=("serve",), ports=(Port(name="http"),))
        await leader.add(
            a_workload(containers={"main": container}, limits={"cpu": "500m"}, disconnect=Disconnect(policy="stop", stop_after="30s"))
        )
        await leader.bind("web", applied("n1", run=3, allocated_ports={"http": 20001}))
        await clock.advance(0.1)
        agent = Speaker(leader, peer())
        [order] = (await agent.welcomed())[1].orders.assignments
        assert (order.uid, order.revision, order.run, dict(order.ports)) == ("uid-web", REVISION, 3, {"http": 20001})
        assert (order.cpu_limit, order.HasField("memory_limit"), dict(order.env)) == (500, False, {"DB_URL": "tcp://10.0.0.7:0"})
        assert (order.disconnect, order.stop_after_ms) == ("stop", 30_000)
        leader.links.environment = lambda workload: {"DB_URL": "tcp://10.0.0.8:0"}
        leader.links.touch(["default/web"])
        await settle()
        [changed] = await agent.orders()
        assert dict(changed.assignments[0].env) == {"DB_URL": "tcp://10.0.0.8:0"}

    play(story)  # fmt: skip


def test_what_changes_nothing_for_the_node_is_not_sent() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "web", "n1")
        agent = Speaker(leader, peer())
        await agent.welcomed()
        await leader.bind("web", applied("n1", actual_state="Running", ready=True))
        await clock.advance(0.1)
        assert await agent.orders() == []

    play(story)


def test_a_node_is_told_of_its_own_workloads_only() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "mine", "n1")
        await bound(leader, clock, "theirs", "n2")
        await leader.add(a_workload("former"))
        status = applied("n1")
        status = type(status)(binding=Binding(node="n1", uid="an-earlier-node"), retry=status.retry, last_action="Apply")
        await leader.bind("former", status)
        await clock.advance(0.1)
        one, two = Speaker(leader, peer("n1")), Speaker(leader, peer("n2"))
        assert told((await one.welcomed())[1].orders) == {"default/mine": "Running"}
        assert told((await two.welcomed())[1].orders) == {"default/theirs": "Running"}
        await leader.bind("mine", applied("n2"))
        await clock.advance(0.1)
        [taken], [given] = await one.orders(), await two.orders()
        assert (list(taken.dropped), told(given)) == (["default/mine"], {"default/mine": "Running"})

    play(story)


def test_a_report_about_anothers_workload_counts_for_the_reporter_only() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "theirs", "n2")
        agent, other = Speaker(leader, peer("n1")), Speaker(leader, peer("n2"))
        await agent.welcomed()
        await other.welcomed()
        report = pb.Report(workload="default/theirs", uid="uid-theirs", state="Failed", revision=REVISION, run=1, failure="INVALID_SPEC")
        await agent.beat(reports=[report], is_whole=True)
        presence = leader.office.presence if leader.office else None
        assert presence is not None
        one, two = presence.get("n1"), presence.get("n2")
        assert one is not None
        assert two is not None
        assert list(one.workloads) == ["default/theirs"]  # seen as an orphan there
        assert two.workloads == {}

    play(story)


def test_the_name_is_in_the_certificate_and_nowhere_else() -> None:
    names = {field.name for message in (pb.Hello, pb.Registration, pb.Beat, pb.RenewRequest) for field in message.DESCRIPTOR.fields}
    assert not {name for name in names if "node" in name or name in ("name", "host", "identity")}


def test_beats_are_answered_and_orders_are_counted_as_known_once_the_agent_says_so() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "web", "n1")
        agent = Speaker(leader, peer())
        await agent.welcomed()
        assert leader.office is not None
        presence, wanted = leader.office.presence, Wanted("Running", REVISION, 1)
        await agent.beat(1, is_whole=True)
        assert [each.heard.beat for each in await agent.answers()] == [1]
        assert not presence.knows("n1", "default/web", wanted)
        await agent.beat(
            2, order=1, reports=[pb.Report(workload="default/web", uid="uid-web", state="Running", revision=REVISION, run=1, ready=True)]
        )
        assert [each.heard.beat for each in await agent.answers()] == [2]
        assert presence.knows("n1", "default/web", wanted)
        heard = presence.get("n1")
        assert heard is not None
        assert heard.workloads["default/web"].ready

    play(story)  # fmt: skip


@pytest.mark.parametrize(
    ("hello", "reason", "words"),
    [
        pytest.param({"protocol": PROTOCOL + 1, "version": "9.9"}, "PROTOCOL", f"agent 9.9 speaks protocol {PROTOCOL + 1}", id="a later protocol"),
        pytest.param({"protocol": 0}, "PROTOCOL", "speaks protocol 0", id="no protocol"),
        pytest.param({"registration": a_registration(labels={"compliance": "hipaa"})}, "REGISTRATION", "may only set labels agent.lattice.dev/", id="a label that attracts work"),
        pytest.param({"registration": a_registration(labels={"region": "eu"})}, "REGISTRATION", "may only set labels", id="another region"),
        pytest.param({"registration": a_registration(labels={"agent.lattice.dev/a b": "x"})}, "REGISTRATION", "label", id="a label that is none"),
        pytest.param({"registration": a_registration(runtimes=["magic"])}, "REGISTRATION", 'no runtime "magic"', id="an unknown runtime"),
        pytest.param({"registration": a_registration(first_port=9, last_port=70000)}, "REGISTRATION", "no range of ports", id="ports that there are not"),
        pytest.param({"registration": a_registration(addresses=[pb.Address(type="InternalIP", address="x; rm")])}, "REGISTRATION", "is no InternalIP", id="an address that is none"),
    ],
)  # fmt: skip
def test_a_hello_that_cannot_be_right_is_refused_and_writes_nothing(hello: dict[str, Any], reason: str, words: str) -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        revision = await leader.store.revision()
        agent = Speaker(leader, peer())
        await agent.hello(**hello)
        [answer] = await agent.answers()
        assert answer.refusal.reason == reason
        assert words in answer.refusal.message
        await agent.ended()
        assert await leader.store.revision() == revision
        assert leader.links.lines == {}

    play(story)


@pytest.mark.parametrize(
    ("who", "reason"),
    [
        pytest.param(peer("n9"), "UNKNOWN_NODE", id="a node that is not there"),
        pytest.param(peer("n1", key="another"), "UNKNOWN_NODE", id="a key that did not join as it"),
    ],
)
def test_a_certificate_counts_only_for_the_node_that_joined_with_its_key(who: Peer, reason: str) -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, who)
        await agent.hello()
        [answer] = await agent.answers()
        assert answer.refusal.reason == reason
        await agent.ended()

    play(story)


@pytest.mark.parametrize(
    ("beat", "words"),
    [
        pytest.param({"reports": [pb.Report(workload="default/w", state="Dancing")]}, "no state of a workload", id="a state that is none"),
        pytest.param({"reports": [pb.Report(workload="default/w", state="Failed", failure="rm -rf")]}, "no state of a workload", id="a failure that is no word"),
        pytest.param({"reports": [pb.Report(workload="../../etc", state="Running")]}, "is no workload", id="a path that is none"),
        pytest.param({"reports": [pb.Report(workload="default/w", state="Failed", log="x" * 5000)]}, "at most 4096", id="too long a log"),
        pytest.param({"gone": ["default/w"] * 5000}, "more than 4096 workloads", id="too many"),
    ],
)  # fmt: skip
def test_a_beat_that_cannot_be_right_ends_the_connection(beat: dict[str, Any], words: str) -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.welcomed()
        await agent.beat(**beat)
        *_, last = await agent.answers()
        assert (last.refusal.reason, words in last.refusal.message) == ("TOO_MUCH", True)
        await agent.ended()

    play(story)


def test_an_agent_that_talks_without_end_is_refused() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.welcomed()
        for number in range(1, 2000):
            await agent.end.send(pb.FromAgent(beat=pb.Beat(number=number)))
            await clock.advance(0.05)  # twenty a second, for as long as it likes
            await agent.answers()
        with suppress(Unavailable):
            for _ in range(1000):
                await agent.end.send(pb.FromAgent(log=pb.LogPiece(id=1)))
        *_, last = await agent.answers()
        assert last.refusal.reason == "TOO_MUCH"
        await agent.ended()

    play(story)


@pytest.mark.parametrize("said", [{"beat": pb.Beat(number=1)}, {"log": pb.LogPiece(id=1)}, {}], ids=["a beat", "a log", "nothing"])
def test_an_agent_says_hello_first(said: dict[str, Any]) -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.say(**said)
        [answer] = await agent.answers()
        assert answer.refusal.reason == "OUT_OF_TURN"
        await agent.ended()

    play(story)


def test_who_says_nothing_is_not_waited_for() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await clock.advance(11)
        assert [each.refusal.reason for each in await agent.answers()] == ["OUT_OF_TURN"]
        await agent.ended()

    play(story)


def test_registration_is_written_once_and_only_what_an_agent_may_say() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await leader.add(a_node("n3", "key-n3", spec=NodeSpec(cluster="east", zone="a", unschedulable=True)))
        said = a_registration(
            labels={"agent.lattice.dev/disk": "ssd"}, reserved={"cpu": 500}, addresses=[pb.Address(type="InternalIP", address="10.0.0.7")]
        )
        await Speaker(leader, peer("n3")).welcomed(registration=said)
        revision = await leader.store.revision()
        await clock.advance(0.1)
        assert leader.office is not None
        node = leader.office.copy(LatticeNode).get("/n3")
        assert node is not None
        assert (node.spec.cluster, node.spec.zone, node.spec.unschedulable) == ("east", "a", True)
        assert (node.status.capacity["cpu"], node.status.allocatable["cpu"]) == (4000, 3500)
        assert node.metadata.labels == {"agent.lattice.dev/disk": "ssd"}
        assert (node.status.agent_version, node.status.runtimes) == ("1", ("process",))
        await Speaker(leader, peer("n3")).welcomed(registration=said)
        assert await leader.store.revision() == revision, "nothing new was said"

    play(story)  # fmt: skip


def test_a_machine_of_a_class_has_no_more_room_than_that_class() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        metadata, resources = Metadata(name="small"), ClassResources(cores=2, memory_gi=4)  # type: ignore[arg-type]
        await leader.add(
            LatticeNodeClass(
                api_version="lattice.dev/v1alpha1", kind="LatticeNodeClass", metadata=metadata, spec=NodeClassSpec(resources=resources)
            )
        )
        await leader.add(a_node("n3", "key-n3", spec=NodeSpec(node_class="small", provider="aws")))
        await clock.advance(0.1)
        said = a_registration(capacity={"cpu": 64000, "memory": 3 << 30, "gpu": 8000}, gpus=[pb.Gpu(model="a100", milli_free=1000)])
        await Speaker(leader, peer("n3")).welcomed(registration=said)
        await clock.advance(0.1)
        assert leader.office is not None
        node = leader.office.copy(LatticeNode).get("/n3")
        assert node is not None
        assert node.status.allocatable == {"cpu": 2000, "gpu": 0, "memory": 3 << 30}
        assert node.status.gpus == ()

    play(story)  # fmt: skip


def test_a_former_leader_registers_nobody() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await clock.advance(20)  # its lease is over, and it has not noticed
        assert await leader.store.campaign(ROLE, "another", 15.0) is not None
        assert leader.office is not None
        with pytest.raises(Fenced):
            await leader.office.commit([Delete(node_key("n2"))])
        agent = Speaker(leader, peer())
        await agent.hello()
        assert [each.refusal.reason for each in await agent.answers()] == ["UNAVAILABLE"]
        assert leader.links.lines == {}

    play(story)


def test_who_does_not_lead_says_who_does() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        leader.step_down("10.0.0.2:7444")
        agent = Speaker(leader, peer())
        await agent.hello()
        assert [each.elsewhere.address for each in await agent.answers()] == ["10.0.0.2:7444"]
        await agent.ended()

    play(story)


def test_an_agent_that_obeyed_a_later_leader_is_not_led() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.hello(term=2)
        assert [each.WhichOneof("said") for each in await agent.answers()] == ["elsewhere"]

    play(story)


def test_when_a_term_ends_its_agents_are_sent_on_at_once_and_no_beat_is_answered() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        one, two = Speaker(leader, peer("n1")), Speaker(leader, peer("n2"))
        await one.welcomed()
        await two.welcomed()
        former = leader.office
        leader.office, leader.elsewhere = None, "10.0.0.2:7444"  # its own clock says that the lease is over; nobody told the links
        await one.beat(reports=[pb.Report(workload="default/web", uid="u", state="Running")])
        assert former is not None
        assert former.presence.get("n1").workloads == {}  # type: ignore[union-attr]
        assert [each.WhichOneof("said") for each in await one.answers()] == ["elsewhere"]
        await one.ended()
        assert [each.WhichOneof("said") for each in await two.answers()] == ["elsewhere"]
        await two.ended()

    play(story)


def test_a_new_connection_of_a_node_takes_the_place_of_the_former() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        first, second = Speaker(leader, peer()), Speaker(leader, peer())
        await first.welcomed()
        await second.welcomed()
        assert [each.refusal.reason for each in await first.answers()] == ["REPLACED"]
        await first.ended()
        await second.beat()
        assert [each.heard.beat for each in await second.answers()] == [1]
        assert leader.office is not None
        heard = leader.office.presence.get("n1")
        assert heard is not None
        assert heard.is_connected

    play(story)


def test_a_connection_ends_with_its_certificate() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer(until=clock.now() + timedelta(seconds=30)))
        await agent.welcomed()
        for number in range(1, 4):
            await clock.advance(9)
            await agent.beat(number)
        await agent.answers()
        await clock.advance(10)
        assert [each.refusal.reason for each in await agent.answers()] == ["EXPIRED"]
        await agent.ended()

    play(story)


def test_a_connection_ends_with_its_node() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.welcomed()
        await leader.store.commit([Delete(node_key("n1"))])
        await clock.advance(6)
        assert [each.refusal.reason for each in await agent.answers()] == ["UNKNOWN_NODE"]
        await agent.ended()

    play(story)


def test_a_silent_connection_is_given_up() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        agent = Speaker(leader, peer())
        await agent.welcomed()
        await clock.advance(39)
        assert not agent.serving.done()
        await clock.advance(7)
        await agent.ended()
        assert leader.office is not None
        heard = leader.office.presence.get("n1")
        assert heard is not None
        assert not heard.is_connected

    play(story)


def test_an_agent_that_does_not_read_keeps_nobody_waiting_and_gets_the_latest_when_it_reads() -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        for name in ("web", "api"):
            await bound(leader, clock, name, "n1" if name == "web" else "n2")
        slow, quick = Speaker(leader, peer("n1"), room=1), Speaker(leader, peer("n2"))
        await slow.hello()
        await quick.welcomed()
        for run in range(2, 50):
            await leader.bind("web", applied("n1", run=run))
            await leader.bind("api", applied("n2", run=run))
            await clock.advance(0.1)
            assert [each.run for orders in await quick.orders() for each in orders.assignments] == [run]
            await quick.beat(run)
            assert [each.heard.beat for each in await quick.answers()] == [run]
        line = leader.links.lines["n1"]
        assert len(line.dirty) <= 1
        runs = [each.run for orders in await slow.orders() for each in orders.assignments]
        assert runs[-1] == 49
        assert len(runs) <= 3, "what it missed is not told any more"

    play(story)


_texts = st.text(max_size=20) | st.sampled_from(["default/web", "default/x", "Running", "Failed", "RUNTIME_ERROR", REVISION])
_reports = st.builds(
    pb.Report, workload=_texts, uid=_texts, state=_texts, revision=_texts, run=st.integers(-5, 5), failure=_texts, log=_texts
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
    pb.Hello, protocol=st.sampled_from([PROTOCOL, 0, 9]), term=st.integers(0, 3), registration=st.just(a_registration()) | _registrations
)
_words = st.one_of(
    st.builds(pb.FromAgent, hello=_hellos),
    st.builds(pb.FromAgent, beat=_beats),
    st.builds(pb.FromAgent, log=st.builds(pb.LogPiece, id=st.integers(0, 3), text=_texts, end=st.booleans())),
    st.just(pb.FromAgent()),
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(said=st.lists(_words, max_size=6), is_polite=st.booleans())
def test_whatever_an_agent_says_the_server_goes_on(said: list[pb.FromAgent], is_polite: bool) -> None:
    async def story(leader: Leader, clock: VirtualClock) -> None:
        await bound(leader, clock, "web", "n1")
        rude, good = Speaker(leader, peer("n1")), Speaker(leader, peer("n2"))
        await good.welcomed()
        if is_polite:
            await rude.welcomed()
        for each in said:
            with suppress(Unavailable):
                await rude.end.send(each)
            await settle()
        await rude.answers()
        rude.end.close()
        await clock.advance(61)
        assert rude.serving.done()
        rude.serving.result()
        again = Speaker(leader, peer("n2"))
        await again.welcomed()
        await again.beat()
        assert [each.heard.beat for each in await again.answers()] == [1]

    play(story)
