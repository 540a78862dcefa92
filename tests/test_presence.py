"""Who was heard when: what counts as silence, what as a change, and what a node knew when it spoke."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store.virtual import VirtualClock

from lattice.presence import AWAY, TICK, Beat, Presence, Spoken, Told, Usage, Wanted

WEB, DB = "shop/web-0", "shop/db-0"


def runs(state: str = "Running", run: int = 1) -> Spoken:
    return Spoken("uid", state, "a" * 24, run)


def a_presence() -> tuple[Presence, VirtualClock, list[Told]]:
    clock = VirtualClock()
    presence, told = Presence(clock), list[Told]()
    presence.on_change(told.append)
    return presence, clock, told


def test_silence_is_counted_from_the_last_word() -> None:
    presence, clock, _ = a_presence()
    session = presence.begin("n1")
    clock.jump(30)
    assert presence.hear(session, Beat())
    clock.jump(12)
    assert presence.silence("n1") == 12


def test_a_new_leader_counts_silence_from_its_own_election() -> None:
    clock = VirtualClock()
    clock.jump(1000)
    presence = Presence(clock)
    assert presence.silence("never heard") == 0
    clock.jump(39)
    assert presence.silence("never heard") == 39
    assert presence.get("never heard") is None


def test_a_lost_connection_is_no_silence_yet() -> None:
    presence, clock, told = a_presence()
    session = presence.begin("n1")
    clock.jump(5)
    presence.end(session)
    heard = presence.get("n1")
    assert heard is not None
    assert not heard.is_connected
    assert presence.silence("n1") == 5
    assert told == [Told("n1", ()), Told("n1", ())]


def test_a_later_connection_silences_the_earlier() -> None:
    presence, clock, _ = a_presence()
    old = presence.begin("n1")
    presence.hear(old, Beat(workloads={WEB: runs()}, is_whole=True))
    new = presence.begin("n1")
    clock.jump(7)
    assert not presence.hear(old, Beat(workloads={}, is_whole=True))
    presence.end(old)
    heard = presence.get("n1")
    assert heard is not None
    assert heard.is_connected
    assert heard.workloads == {WEB: runs()}
    assert presence.silence("n1") == 7
    assert presence.hear(new, Beat())
    presence.forget("n1")
    assert not presence.hear(new, Beat())
    assert presence.nodes() == []


BEATS = [
    pytest.param(Beat(), None, id="a mere beat tells nothing"),
    pytest.param(
        Beat(usage=Usage(5, 6, 7), workload_usage={WEB: Usage(1, 2, 3)}), None, id="usage is kept, not told"
    ),
    pytest.param(Beat(workloads={WEB: runs()}), None, id="the same state again tells nothing"),
    pytest.param(Beat(workloads={WEB: runs("Failed")}), (WEB,), id="another state is told"),
    pytest.param(Beat(workloads={WEB: None}), (WEB,), id="one that is gone is told"),
    pytest.param(Beat(workloads={"shop/none": None}), None, id="one that never was is not"),
    pytest.param(
        Beat(workloads={DB: runs()}, is_whole=True), (WEB,), id="one left out of a whole list is gone"
    ),
    pytest.param(Beat(order=3), (), id="having carried out an order is told"),
]


@pytest.mark.parametrize(("beat", "changed"), BEATS)
def test_what_is_told(beat: Beat, changed: tuple[str, ...] | None) -> None:
    presence, _, told = a_presence()
    session = presence.begin("n1")
    presence.hear(session, Beat(workloads={WEB: runs(), DB: runs()}, is_whole=True))
    told.clear()
    presence.hear(session, beat)
    assert told == ([] if changed is None else [Told("n1", changed)])


def test_usage_stays_until_it_is_measured_again() -> None:
    presence, _, _ = a_presence()
    session = presence.begin("n1")
    presence.hear(session, Beat(usage=Usage(5, 6, 7), workload_usage={WEB: Usage(1, 2, 3)}))
    presence.hear(session, Beat())
    heard = presence.get("n1")
    assert heard is not None
    assert (heard.usage, heard.workload_usage) == (Usage(5, 6, 7), {WEB: Usage(1, 2, 3)})


def test_an_earlier_connection_orders_nothing_any_more() -> None:
    presence, _clock, _ = a_presence()
    earlier = presence.begin("n1")
    assert presence.order(earlier, {}, is_whole=True) == 1
    later = presence.begin("n1")
    assert presence.order(earlier, {WEB: None}) == 0
    assert not presence.was_told("n1", WEB)
    assert presence.order(later, {WEB: None}, is_whole=True) == 1
    assert presence.was_told("n1", WEB)
    presence.forget("n1")
    assert presence.order(later, {WEB: None}) == 0


def test_when_the_present_connection_began_is_known() -> None:
    presence, clock, _ = a_presence()
    begun = clock.monotonic()
    presence.begin("n1")
    clock.jump(5)
    session = presence.begin("n1")
    clock.jump(5)
    presence.hear(session, Beat())
    heard = presence.get("n1")
    assert heard is not None
    assert heard.since == begun + 5


def test_nobody_listens_any_more_once_they_stopped() -> None:
    presence, told = Presence(VirtualClock()), list[Told]()
    stop = presence.on_change(told.append)
    stop()
    presence.begin("n1")
    assert told == []


def test_what_a_node_says_before_it_carried_out_an_order_is_known_as_such() -> None:
    presence, _, _ = a_presence()
    start, stop = Wanted("Running", "a" * 24, 1), Wanted("Stopped", "a" * 24, 1)
    session = presence.begin("n1")
    assert not presence.knows("n1", WEB, None)
    first = presence.order(session, {WEB: start}, is_whole=True)
    presence.hear(session, Beat(order=first))
    assert presence.knows("n1", WEB, start)
    assert presence.knows("n1", DB, None)
    assert not presence.knows("n1", WEB, stop)  # decided, and not sent yet
    second = presence.order(session, {WEB: stop})
    presence.hear(session, Beat(workloads={WEB: runs()}))
    assert not presence.knows("n1", WEB, stop)  # sent, and not carried out yet
    presence.hear(session, Beat(order=second))
    assert presence.knows("n1", WEB, stop)
    third = presence.order(session, {WEB: None})
    presence.hear(session, Beat(order=third))
    assert presence.knows("n1", WEB, None)
    again = presence.begin("n1")
    presence.order(again, {DB: start}, is_whole=True)
    assert not presence.knows("n1", WEB, None)  # what it carried out on another connection counts no more
    presence.hear(again, Beat(order=1))
    assert presence.knows("n1", WEB, None)
    assert not presence.knows("n2", WEB, None)


@pytest.mark.parametrize(
    ("pause", "silence"),
    [
        pytest.param(TICK + AWAY - 1, 100 + TICK + AWAY - 1, id="a short pause of ours counts"),
        pytest.param(130, 0, id="while we were away we heard nobody, and blame nobody"),
    ],
)
def test_a_server_that_was_paused_begins_to_listen_anew(pause: float, silence: float) -> None:
    async def script() -> None:
        clock = VirtualClock()
        presence = Presence(clock)
        task = asyncio.create_task(presence.run())
        presence.begin("n2")
        await clock.advance(100)
        clock.jump(pause)
        assert (presence.silence("n1"), presence.silence("n2")) == (silence, silence)
        await clock.advance(10)
        assert (presence.silence("n1"), presence.silence("n2")) == (silence + 10, silence + 10)
        task.cancel()

    asyncio.run(script())


beats = st.builds(
    Beat,
    workloads=st.dictionaries(
        st.sampled_from([WEB, DB, "a/b"]), st.none() | st.sampled_from([runs(), runs("Failed"), runs(run=2)])
    ),
    is_whole=st.booleans(),
)


@given(st.lists(beats, max_size=12))
def test_what_is_told_adds_up_to_what_is_known(said: list[Beat]) -> None:
    presence, _, told = a_presence()
    session, model = presence.begin("n1"), dict[str, Spoken]()
    for beat in said:
        before = dict(model)
        if beat.is_whole:
            model.clear()
        for path, spoken in beat.workloads.items():
            model.pop(path, None)
            if spoken is not None:
                model[path] = spoken
        told.clear()
        presence.hear(session, beat)
        heard = presence.get("n1")
        assert heard is not None
        assert heard.workloads == model
        changed = {path for path in (*before, *model) if before.get(path) != model.get(path)}
        assert {path for each in told for path in each.workloads} == changed
