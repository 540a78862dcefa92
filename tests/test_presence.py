"""Presence of nodes: heartbeat age, change notifications, and the assignments that a node had applied with
its report."""

import asyncio

import pytest
from build.virtual import VirtualClock
from hypothesis import given
from hypothesis import strategies as st

from lattice.presence import (
    LIVENESS_CHECK_INTERVAL_S,
    MAX_LIVENESS_DELAY_S,
    DesiredRun,
    Heartbeat,
    Presence,
    PresenceChange,
    Usage,
    WorkloadReport,
)

WEB, DB = "shop/web-0", "shop/db-0"


def runs(state: str = "Running", run: int = 1) -> WorkloadReport:
    return WorkloadReport("uid", state, "a" * 24, run)


def a_presence() -> tuple[Presence, VirtualClock, list[PresenceChange]]:
    clock = VirtualClock()
    presence, told = Presence(clock), list[PresenceChange]()
    presence.on_change(told.append)
    return presence, clock, told


def test_heartbeat_age_counts_from_the_last_heartbeat() -> None:
    presence, clock, _ = a_presence()
    session = presence.start_session("n1")
    clock.jump(30)
    assert presence.record_heartbeat(session, Heartbeat())
    clock.jump(12)
    assert presence.heartbeat_age("n1") == 12


def test_new_leader_counts_heartbeat_age_from_its_election() -> None:
    clock = VirtualClock()
    clock.jump(1000)
    presence = Presence(clock)
    assert presence.heartbeat_age("never heard") == 0
    clock.jump(39)
    assert presence.heartbeat_age("never heard") == 39
    assert presence.get("never heard") is None


def test_lost_connection_keeps_the_heartbeat_age() -> None:
    presence, clock, told = a_presence()
    session = presence.start_session("n1")
    clock.jump(5)
    presence.end_session(session)
    heard = presence.get("n1")
    assert heard is not None
    assert not heard.is_connected
    assert presence.heartbeat_age("n1") == 5
    assert told == [PresenceChange("n1", ()), PresenceChange("n1", ())]


def test_later_session_supersedes_the_earlier() -> None:
    presence, clock, _ = a_presence()
    old = presence.start_session("n1")
    presence.record_heartbeat(old, Heartbeat(workloads={WEB: runs()}, is_full_report=True))
    new = presence.start_session("n1")
    clock.jump(7)
    assert not presence.record_heartbeat(old, Heartbeat(workloads={}, is_full_report=True))
    presence.end_session(old)
    heard = presence.get("n1")
    assert heard is not None
    assert heard.is_connected
    assert heard.workloads == {WEB: runs()}
    assert presence.heartbeat_age("n1") == 7
    assert presence.record_heartbeat(new, Heartbeat())
    presence.forget_node("n1")
    assert not presence.record_heartbeat(new, Heartbeat())
    assert presence.nodes() == []


BEATS = [
    pytest.param(Heartbeat(), None, id="an empty heartbeat is not notified"),
    pytest.param(
        Heartbeat(usage=Usage(5, 6, 7), workload_usage={WEB: Usage(1, 2, 3)}),
        None,
        id="usage is stored without a notification",
    ),
    pytest.param(Heartbeat(workloads={WEB: runs()}), None, id="an unchanged state is not notified"),
    pytest.param(Heartbeat(workloads={WEB: runs("Failed")}), (WEB,), id="a changed state is notified"),
    pytest.param(Heartbeat(workloads={WEB: None}), (WEB,), id="a removed workload is notified"),
    pytest.param(
        Heartbeat(workloads={"shop/none": None}), None, id="removal of an unknown workload is not notified"
    ),
    pytest.param(
        Heartbeat(workloads={DB: runs()}, is_full_report=True),
        (WEB,),
        id="a workload missing from a full report is removed",
    ),
    pytest.param(Heartbeat(applied_sequence=3), (), id="an applied sequence is notified"),
]


@pytest.mark.parametrize(("beat", "changed"), BEATS)
def test_heartbeat_changes_are_notified(beat: Heartbeat, changed: tuple[str, ...] | None) -> None:
    presence, _, told = a_presence()
    session = presence.start_session("n1")
    presence.record_heartbeat(session, Heartbeat(workloads={WEB: runs(), DB: runs()}, is_full_report=True))
    told.clear()
    presence.record_heartbeat(session, beat)
    assert told == ([] if changed is None else [PresenceChange("n1", changed)])


def test_usage_is_kept_until_the_next_measurement() -> None:
    presence, _, _ = a_presence()
    session = presence.start_session("n1")
    presence.record_heartbeat(session, Heartbeat(usage=Usage(5, 6, 7), workload_usage={WEB: Usage(1, 2, 3)}))
    presence.record_heartbeat(session, Heartbeat())
    heard = presence.get("n1")
    assert heard is not None
    assert (heard.usage, heard.workload_usage) == (Usage(5, 6, 7), {WEB: Usage(1, 2, 3)})


def test_superseded_session_records_no_assignments() -> None:
    presence, _clock, _ = a_presence()
    earlier = presence.start_session("n1")
    assert presence.record_assignments(earlier, {}, is_full_list=True) == 1
    later = presence.start_session("n1")
    assert presence.record_assignments(earlier, {WEB: None}) == 0
    assert not presence.was_sent("n1", WEB)
    assert presence.record_assignments(later, {WEB: None}, is_full_list=True) == 1
    assert presence.was_sent("n1", WEB)
    presence.forget_node("n1")
    assert presence.record_assignments(later, {WEB: None}) == 0


def test_session_start_time_is_recorded() -> None:
    presence, clock, _ = a_presence()
    begun = clock.monotonic()
    presence.start_session("n1")
    clock.jump(5)
    session = presence.start_session("n1")
    clock.jump(5)
    presence.record_heartbeat(session, Heartbeat())
    heard = presence.get("n1")
    assert heard is not None
    assert heard.connected_at == begun + 5


def test_unsubscribed_listener_is_not_called() -> None:
    presence, told = Presence(VirtualClock()), list[PresenceChange]()
    stop = presence.on_change(told.append)
    stop()
    presence.start_session("n1")
    assert told == []


def test_has_applied_compares_report_and_assignment_sequence() -> None:
    presence, _, _ = a_presence()
    start, stop = DesiredRun("Running", "a" * 24, 1), DesiredRun("Stopped", "a" * 24, 1)
    session = presence.start_session("n1")
    assert not presence.has_applied("n1", WEB, None)
    first = presence.record_assignments(session, {WEB: start}, is_full_list=True)
    presence.record_heartbeat(session, Heartbeat(applied_sequence=first))
    assert presence.has_applied("n1", WEB, start)
    assert presence.has_applied("n1", DB, None)
    assert not presence.has_applied("n1", WEB, stop)  # decided, and not sent yet
    second = presence.record_assignments(session, {WEB: stop})
    presence.record_heartbeat(session, Heartbeat(workloads={WEB: runs()}))
    assert not presence.has_applied("n1", WEB, stop)  # sent, and not carried out yet
    presence.record_heartbeat(session, Heartbeat(applied_sequence=second))
    assert presence.has_applied("n1", WEB, stop)
    third = presence.record_assignments(session, {WEB: None})
    presence.record_heartbeat(session, Heartbeat(applied_sequence=third))
    assert presence.has_applied("n1", WEB, None)
    again = presence.start_session("n1")
    presence.record_assignments(again, {DB: start}, is_full_list=True)
    assert not presence.has_applied(
        "n1", WEB, None
    )  # what it carried out on another connection counts no more
    presence.record_heartbeat(again, Heartbeat(applied_sequence=1))
    assert presence.has_applied("n1", WEB, None)
    assert not presence.has_applied("n2", WEB, None)


@pytest.mark.parametrize(
    ("pause", "silence"),
    [
        pytest.param(
            LIVENESS_CHECK_INTERVAL_S + MAX_LIVENESS_DELAY_S - 1,
            100 + LIVENESS_CHECK_INTERVAL_S + MAX_LIVENESS_DELAY_S - 1,
            id="a short pause of the server counts",
        ),
        pytest.param(130, 0, id="a long pause of the server resets the age"),
    ],
)
async def test_paused_server_restarts_heartbeat_ages(pause: float, silence: float) -> None:
    clock = VirtualClock()
    presence = Presence(clock)
    task = asyncio.create_task(presence.run())
    presence.start_session("n2")
    await clock.advance(100)
    clock.jump(pause)
    assert (presence.heartbeat_age("n1"), presence.heartbeat_age("n2")) == (silence, silence)
    await clock.advance(10)
    assert (presence.heartbeat_age("n1"), presence.heartbeat_age("n2")) == (silence + 10, silence + 10)
    task.cancel()


beats = st.builds(
    Heartbeat,
    workloads=st.dictionaries(
        st.sampled_from([WEB, DB, "a/b"]), st.none() | st.sampled_from([runs(), runs("Failed"), runs(run=2)])
    ),
    is_full_report=st.booleans(),
)


@given(st.lists(beats, max_size=12))
def test_changes_add_up_to_the_reported_state(said: list[Heartbeat]) -> None:
    presence, _, told = a_presence()
    session, model = presence.start_session("n1"), dict[str, WorkloadReport]()
    for beat in said:
        before = dict(model)
        if beat.is_full_report:
            model.clear()
        for path, spoken in beat.workloads.items():
            model.pop(path, None)
            if spoken is not None:
                model[path] = spoken
        told.clear()
        presence.record_heartbeat(session, beat)
        heard = presence.get("n1")
        assert heard is not None
        assert heard.workloads == model
        changed = {path for path in (*before, *model) if before.get(path) != model.get(path)}
        assert {path for each in told for path in each.workloads} == changed
