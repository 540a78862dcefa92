"""Automation rules act once per crossing, on busy nodes, failing workloads, budgets and full pools; a new
leader does not repeat an action."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import a_ledger, make_object
from build.virtual import VirtualClock

from lattice.controllers.automation.rules import AutomationController
from lattice.controllers.automation.webhook_queue import WebhookQueue
from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Loop
from lattice.errors import Unavailable
from lattice.kinds.automation import AutomationRule
from lattice.kinds.core import Event
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import RETRY_REQUESTED_ANNOTATION, LatticeWorkload
from lattice.presence import Heartbeat, Presence, Usage

HOOK = {"webhook": {"url": "https://hooks.example/scale"}}
ALERT = {"event": {"reason": "Alert"}}

DEAD = {"webhook": {"url": "https://dead.example/hook"}}


@dataclass
class WebhookReceiver:
    """A webhook receiver that records calls, or does not answer."""

    clock: VirtualClock
    calls: list[dict[str, Any]] = field(default_factory=list)
    failures: int = 0
    dead: str = ""  # an address that does not answer within the timeout

    async def post(self, url: str, body: Any, timeout: float, signing_key: bytes = b"") -> None:
        if url == self.dead:
            await self.clock.sleep(timeout)
            raise Unavailable(f"dead.example did not answer within {timeout:g} s")
        if self.failures:
            self.failures -= 1
            raise Unavailable("hooks.example cannot be reached")
        signed = {"key": signing_key} if signing_key else {}
        self.calls.append({**body, "url": url, "timeout": timeout, **signed})


@dataclass
class RuleWorld:
    plane: ControlPlane = field(default_factory=ControlPlane)
    max_queued: int = 1000  # calls that may wait for one address

    def __post_init__(self) -> None:
        self.receiver = WebhookReceiver(self.plane.clock)
        self.presence = Presence(self.plane.clock)

    async def controllers(self) -> tuple[ControllerContext, Loop, Loop]:
        context = await self.plane.new_term(self.presence)
        calls = WebhookQueue(context, self.receiver, max_queued=self.max_queued)
        return context, calls.loop(), AutomationController(context, calls).loop()

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """Another server leads until the block ends."""
        async with running_loops(*await self.controllers()):
            yield

    async def rule(self) -> AutomationRule:
        found = await self.plane.get(AutomationRule, "r")
        assert found is not None
        return found

    def burn(self, node: str, milli: int) -> None:
        self.presence.record_heartbeat(self.presence.start_session(node), Heartbeat(usage=Usage(cpu=milli)))

    async def advance(self, seconds: float) -> None:
        await self.plane.clock.advance(seconds)


def a_rule(when: dict[str, Any], *actions: dict[str, Any], **spec: Any) -> AutomationRule:
    rule = make_object(AutomationRule, "r", spec={"when": when, "actions": list(actions), **spec})
    assert not list(rule.problems())
    return rule


@asynccontextmanager
async def running_rules(*objects: Any) -> AsyncIterator[RuleWorld]:
    """A leading server with these objects in its store, until the block ends."""
    world = RuleWorld()
    await world.plane.put(*objects)
    async with world.leading():
        yield world


NODE = make_object(LatticeNode, "n1", status={"capacity": {"cpu": 4000}})
BUSY = a_rule({"nodeCpu": {"above": 0.85, "for": "5m"}}, HOOK)


async def test_busy_node_calls_webhook_once() -> None:
    async with running_rules(NODE, BUSY) as world:
        world.burn("n1", 3900)
        await world.advance(290)
        assert world.receiver.calls == []
        await world.advance(20)
        assert [
            (call["rule"], call["object"], call["url"], call["timeout"]) for call in world.receiver.calls
        ] == [("r", "latticenode/n1", "https://hooks.example/scale", 5.0)]
        assert "3900m of 4000m cpu in use (98 %) for " in world.receiver.calls[0]["message"]
        await world.advance(3600)
        assert len(world.receiver.calls) == 1, "it is still the same crossing"
        world.burn("n1", 100)
        await world.advance(10)
        world.burn("n1", 3900)
        await world.advance(310)
        assert len(world.receiver.calls) == 2
        assert (await world.rule()).status.fired == 2


async def test_intermittently_busy_node_does_not_fire() -> None:
    async with running_rules(NODE, BUSY) as world:
        for _ in range(5):
            world.burn("n1", 3900)
            await world.advance(200)
            world.burn("n1", 100)
            await world.advance(20)
        assert world.receiver.calls == []


def a_failing(attempts: int, name: str = "w", **meta: Any) -> LatticeWorkload:
    status = {"retry": {"attempts": attempts}, "failureReason": "RUNTIME_ERROR"}
    return make_object(
        LatticeWorkload,
        name,
        "default",
        meta=meta,
        spec={"containers": {"main": {"command": ["false"]}}},
        status=status,
    )


async def test_failing_workload_raises_one_alert() -> None:
    async with running_rules(a_rule({"workloadFailures": {"count": 3}}, ALERT)) as world:
        for attempts in (1, 2, 3, 4, 5):
            await world.plane.put(a_failing(attempts))
            await world.advance(1)
        events = await world.plane.events()
        assert events.count("Alert w") == 1
        assert events.count("RuleFired r") == 1
        await world.plane.put(a_failing(0))
        await world.advance(1)
        await world.plane.put(a_failing(3))
        await world.advance(1)
        assert (await world.plane.events()).count("Alert w") == 2


async def test_rule_ignores_objects_outside_its_selector() -> None:
    async with running_rules(
        a_rule({"workloadFailures": {"count": 3, "selector": {"matchLabels": {"app": "web"}}}}, ALERT)
    ) as world:
        await world.plane.put(a_failing(3, "mine", labels={"app": "web"}), a_failing(3, "other"))
        await world.advance(1)
        assert [event for event in await world.plane.events() if event.startswith("Alert")] == ["Alert mine"]


async def test_rule_retries_and_stops_workload() -> None:
    async with running_rules(
        a_rule(
            {"workloadFailures": {"count": 3}},
            {"retryWorkload": {}},
            {"setDesiredState": {"state": "Stopped"}},
        )
    ) as world:
        await world.plane.put(a_failing(3))
        await world.advance(1)
        found = await world.plane.get(LatticeWorkload, "w", "default")
        assert found is not None
        assert RETRY_REQUESTED_ANNOTATION in found.metadata.annotations
        assert found.spec.desired_state == "Stopped"
        assert found.metadata.generation == 2


def a_ledger_at_rate(rate: int) -> LatticeLedger:
    """A ledger of 744 dollars a month with one lot that costs `rate` micro-dollars per hour."""
    lots = {"c": [{"nodeClass": "m", "count": 1, "micros": rate}]}
    as_of = {"month": "2026-01", "asOf": "2026-01-01T00:00:00.000000Z"}
    return a_ledger("p", 744_000_000, committedMicros=rate, machines=lots, **as_of)


async def test_budget_above_threshold_fires_rule() -> None:
    async with running_rules(a_rule({"budget": {"above": 0.9}}, HOOK, ALERT)) as world:
        await world.plane.put(a_ledger_at_rate(800_000))
        await world.advance(1)
        assert world.receiver.calls == []
        await world.plane.put(a_ledger_at_rate(950_000))
        await world.advance(1)
        assert [call["object"] for call in world.receiver.calls] == ["latticeledger/pool.p"]
        assert "95.0 % of the budget" in world.receiver.calls[0]["message"]
        assert "Alert pool.p" in await world.plane.events()


async def test_pool_above_threshold_fires_rule() -> None:
    async with running_rules(a_rule({"capacity": {"above": "0.9", "pool": "p"}}, HOOK)) as world:
        pool = make_object(
            LatticePool,
            "p",
            spec={"provider": {"type": "local"}},
            status={"utilization": {"nodes": 0.5, "cores": "0.95"}},
        )
        await world.plane.put(pool)
        await world.advance(1)
        assert [call["message"] for call in world.receiver.calls] == ["95 % of the cores of the pool in use"]


async def test_suspended_rule_does_not_act_after_resume() -> None:
    rule = a_rule({"workloadFailures": {"count": 3}}, ALERT, suspend=True)

    async with running_rules(rule) as world:
        await world.plane.put(a_failing(3))
        await world.advance(1)
        now = await world.rule()
        assert list(now.status.crossed) == ["latticeworkload/default/w"]
        await world.plane.put(
            msgspec.structs.replace(
                rule, spec=msgspec.structs.replace(rule.spec, suspend=False), status=now.status
            )
        )
        await world.advance(1)
        assert await world.plane.events() == []


async def test_failing_webhook_is_reported_after_three_attempts() -> None:
    async with running_rules(a_rule({"workloadFailures": {"count": 3}}, HOOK)) as world:
        world.receiver.failures = 2
        await world.plane.put(a_failing(3))
        await world.advance(10)
        assert len(world.receiver.calls) == 1
        assert (await world.rule()).status.last_error == ""
        world.receiver.failures = 3
        await world.plane.put(a_failing(3, "v"))
        await world.advance(10)
        assert len(world.receiver.calls) == 1
        assert "cannot be reached" in (await world.rule()).status.last_error
        assert "WebhookFailed r" in await world.plane.events()


async def test_new_leader_does_not_repeat_action_nor_write_at_rest() -> None:
    world = RuleWorld()
    await world.plane.put(a_rule({"workloadFailures": {"count": 3}}, HOOK), a_failing(3))
    for _ in range(2):
        async with world.leading():
            await world.advance(5)
            first, *later = await revision_after(world.plane, [40, 40])
            assert set(later) == {first}
    assert len(world.receiver.calls) == 1


async def test_new_leader_keeps_crossing_until_node_reports_usage() -> None:
    world = RuleWorld()
    await world.plane.put(NODE, BUSY)
    async with world.leading():
        world.burn("n1", 3900)
        await world.advance(400)
    world.presence = Presence(world.plane.clock)
    async with world.leading():
        await world.advance(10)
        assert list((await world.rule()).status.crossed) == ["latticenode/n1"]
        world.presence.start_session("n1")  # connected, without a usage report yet
        await world.advance(10)
        world.burn("n1", 3900)
        await world.advance(400)
        assert len(world.receiver.calls) == 1
        world.burn("n1", 100)
        await world.advance(10)
        assert (await world.rule()).status.crossed == {}


async def test_crossing_of_deleted_node_is_removed() -> None:
    async with running_rules(NODE, BUSY) as world:
        world.burn("n1", 3900)
        await world.advance(310)
        await world.plane.remove(NODE)
        await world.advance(10)
        assert (await world.rule()).status.crossed == {}


async def test_simultaneous_crossings_fire_once_per_object() -> None:
    count = 130

    async with running_rules(
        a_rule({"workloadFailures": {"count": 3}}, ALERT, HOOK),
        *(a_failing(3, f"w{index}") for index in range(count)),
    ) as world:
        for _ in range(20):
            await world.advance(1)
        events = await world.plane.events()
        assert {f"Alert w{index}" for index in range(count)} == {
            event for event in events if event.startswith("Alert")
        }
        assert sum(event == "RuleFired r" for event in events) == count
        assert len(world.receiver.calls) == count
        rule = await world.rule()
        assert (rule.status.fired, len(rule.status.crossed)) == (count, count)
        await world.advance(60)
        assert await world.plane.events() == events


async def test_dead_webhook_does_not_delay_others_and_is_reported() -> None:
    other = a_rule({"workloadFailures": {"count": 3}}, HOOK)
    other = msgspec.structs.replace(other, metadata=msgspec.structs.replace(other.metadata, name="s"))

    async with running_rules(a_rule({"workloadFailures": {"count": 3}}, DEAD), other) as world:
        world.receiver.dead = DEAD["webhook"]["url"]
        await world.plane.put(*(a_failing(3, f"w{index}") for index in range(10)))
        await world.advance(1)
        assert len({call["object"] for call in world.receiver.calls}) == 10, (
            "the other address is called at once"
        )
        await world.plane.put(a_failing(3, "late"))
        await world.advance(1)
        assert "RuleFired r" in await world.plane.events(), "and the rule goes on looking"
        assert (await world.rule()).status.fired == 11
        await world.advance(120)
        assert (await world.plane.events()).count("WebhookFailed r") == 11
        assert "dead.example" in (await world.rule()).status.last_error


async def test_calls_beyond_queue_limit_are_reported_and_dropped() -> None:
    world = RuleWorld(max_queued=4)
    world.receiver.dead = DEAD["webhook"]["url"]
    await world.plane.put(
        a_rule({"workloadFailures": {"count": 3}}, DEAD),
        *(a_failing(3, f"w{index}") for index in range(6)),
    )
    async with world.leading():
        await world.advance(60)
    messages = [event.message for event in await world.plane.all(Event) if event.reason == "WebhookFailed"]
    assert sorted(each.split(": ")[0] for each in messages) == [
        f"latticeworkload/default/w{index}" for index in range(6)
    ]
    assert sorted(each.split(": ")[0] for each in messages if "the call was dropped" in each) == [
        "latticeworkload/default/w4",
        "latticeworkload/default/w5",
    ]


async def test_cooldown_applies_per_object() -> None:
    async with running_rules(a_rule({"workloadFailures": {"count": 3}}, ALERT, cooldown="10m")) as world:

        async def flaps(*names: str) -> None:
            for count in (3, 0):
                await world.plane.put(*(a_failing(count, name) for name in names))
                await world.advance(1)

        await flaps("a", "b")
        await flaps("a", "b")
        assert [event for event in await world.plane.events() if event.startswith("Alert")] == [
            "Alert a",
            "Alert b",
        ]
        await world.advance(600)
        await flaps("a")
        await flaps("b")
        assert (
            sorted(event for event in await world.plane.events() if event.startswith("Alert"))
            == ["Alert a"] * 2 + ["Alert b"] * 2
        )
        await world.advance(600)
        await flaps("c")
        assert list((await world.rule()).status.quiet) == ["latticeworkload/default/c"], (
            "what is over is not remembered"
        )
