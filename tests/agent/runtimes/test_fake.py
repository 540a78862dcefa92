"""The fake runtime: virtual time, seeded randomness, failures on demand, and a history of every instance."""

import random
from pathlib import Path

import pytest
from build.assignments import a_spec, instance_id
from build.virtual import VirtualClock

from lattice.agent.host.runtime_protocol import Failure, InstanceId, InstanceRecord
from lattice.agent.runtimes.fake import Behaviour, FakeMachine, FakeRuntime, RuntimeEvent
from lattice.kinds.container import Probe, TcpProbe

BROKEN = Failure("IMAGE_PULL_FAILED", "no route")


class MemoryRecords:
    """Instance records in memory, in place of the state file."""

    def __init__(self) -> None:
        self.records: dict[InstanceId, InstanceRecord] = {}

    def write_record(self, record: InstanceRecord) -> None:
        self.records[record.spec.id] = record

    def delete_record(self, which: InstanceId) -> None:
        self.records.pop(which, None)


def a_fake_machine(behaviour: Behaviour, seed: int = 1) -> tuple[FakeMachine, VirtualClock]:
    clock = VirtualClock()
    return FakeMachine(clock, random.Random(seed), {"": behaviour}), clock


async def states(behaviour: Behaviour, *at: float) -> list[str]:
    """The states of an instance at these times after its start."""
    machine, clock = a_fake_machine(behaviour)
    runtime, seen = FakeRuntime(machine, MemoryRecords()), []
    await runtime.start(a_spec("x"))
    for time in at:
        await clock.advance(time - clock.monotonic())
        seen.append((await runtime.list())[0].state)
    return seen


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        pytest.param(Behaviour(), ["Running", "Running", "Running"], id="runs until it is stopped"),
        pytest.param(Behaviour(start_takes=5), ["Starting", "Running", "Running"], id="a slow start"),
        pytest.param(Behaviour(exits_after=9), ["Running", "Running", "Exited"], id="exits after a time"),
        pytest.param(Behaviour(start_fails=BROKEN), ["Exited", "Exited", "Exited"], id="a failing start"),
    ],
)
async def test_instance_follows_its_behaviour(behaviour: Behaviour, expected: list[str]) -> None:
    assert await states(behaviour, 1, 6, 10) == expected


async def test_starts_fail_the_given_number_of_times() -> None:
    machine, _ = a_fake_machine(Behaviour(start_fails=BROKEN, failing_starts=2))
    runtime = FakeRuntime(machine, MemoryRecords())
    assert [(await runtime.start(a_spec("x", attempt=n))).failure for n in range(4)] == [
        BROKEN,
        BROKEN,
        None,
        None,
    ]


async def crash_times(seed: int) -> list[float]:
    machine, clock = a_fake_machine(Behaviour(exits_after=3, jitter=1, exit_code=1), seed)
    runtime = FakeRuntime(machine, MemoryRecords())
    for attempt in range(5):
        await runtime.start(a_spec("x", attempt=attempt))
        await clock.advance(10)
        await runtime.list()
    return [event.at for event in machine.history if event.action == "stop"]


async def test_crash_loop_is_deterministic_per_seed() -> None:
    times = await crash_times(7)
    assert await crash_times(7) == times
    assert await crash_times(8) != times
    assert all(3 <= at % 10 < 6 for at in times)


async def test_fake_watchdog_stops_at_exact_deadline() -> None:
    machine, clock = a_fake_machine(Behaviour())
    records = MemoryRecords()
    runtime = FakeRuntime(machine, records)
    await runtime.record_contact(clock.monotonic())
    await runtime.start(a_spec("x", stop_after=90))
    await clock.advance(80)
    await runtime.record_contact(75.0)  # what was acknowledged had been sent five seconds ago
    await clock.advance(1000)  # the agent is dead
    await runtime.record_contact(clock.monotonic())
    assert machine.history == [
        RuntimeEvent(0, "start", instance_id()),
        RuntimeEvent(165, "stop", instance_id()),
    ]
    successor = FakeRuntime(machine, records)
    adopted = await successor.adopt(records.records[instance_id()])
    assert adopted.failure
    assert adopted.failure.reason == "DISCONNECTED"


async def test_power_loss_keeps_only_the_state_file() -> None:
    machine, clock = a_fake_machine(Behaviour())
    records = MemoryRecords()
    await FakeRuntime(machine, records).start(a_spec("x"))
    await clock.advance(5)
    machine.lose_power()
    successor = FakeRuntime(machine, records)
    assert (await successor.adopt(records.records[instance_id()])).state == "Exited"
    assert machine.live_instances() == []
    assert (await successor.start(a_spec("x", attempt=1))).is_live


async def test_probes_follow_the_behaviour() -> None:
    machine, clock = a_fake_machine(Behaviour(ready_after=5, unhealthy_after=20))
    runtime, probe, heard = FakeRuntime(machine, MemoryRecords()), Probe(tcp=TcpProbe(port=1)), []
    await runtime.start(a_spec("x"))
    for _ in range(3):
        heard.append((await runtime.run_probe(instance_id(), probe)).ok)
        await clock.advance(10)
    assert heard == [False, True, False]


def test_fake_runtime_does_no_io(tmp_path: Path) -> None:
    import lattice.agent.runtimes.fake as module

    text = Path(module.__file__).read_text()
    assert not [
        word
        for word in ("subprocess", "os.", "open(", "asyncio", "time.")
        if word in text.replace("Protocol", "")
    ]
