"""Rules act once per crossing: on busy nodes, failing workloads, budgets and full pools; another server does not act again."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import msgspec
from offices import Scene, a, acting, revision_after

from lattice.controllers.automation import Automation
from lattice.errors import Unavailable
from lattice.kinds.automation import AutomationRule
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.workload import RETRY_REQUESTED, LatticeWorkload
from lattice.presence import Beat, Presence, Usage

HOOK = {"webhook": {"url": "https://hooks.example/scale"}}
ALERT = {"event": {"reason": "Alert"}}


@dataclass
class Ear:
    """A webhook that remembers, or does not answer."""

    heard: list[dict[str, Any]] = field(default_factory=list)
    deaf: int = 0

    async def post(self, url: str, body: Any, timeout: float) -> None:
        if self.deaf:
            self.deaf -= 1
            raise Unavailable("hooks.example cannot be reached")
        self.heard.append({**body, "url": url, "timeout": timeout})


@dataclass
class Stage:
    scene: Scene = field(default_factory=Scene)
    ear: Ear = field(default_factory=Ear)

    def __post_init__(self) -> None:
        self.presence = Presence(self.scene.clock)

    async def controller(self) -> Automation:
        return Automation(await self.scene.office(self.presence), self.ear)

    async def rule(self) -> AutomationRule:
        found = await self.scene.get(AutomationRule, "r")
        assert found is not None
        return found

    def burn(self, node: str, milli: int) -> None:
        self.presence.hear(self.presence.begin(node), Beat(usage=Usage(cpu=milli)))

    async def passes(self, seconds: float) -> None:
        await self.scene.clock.advance(seconds)


def a_rule(when: dict[str, Any], *actions: dict[str, Any], **spec: Any) -> AutomationRule:
    rule = a(AutomationRule, "r", spec={"when": when, "actions": list(actions), **spec})
    assert not list(rule.problems())
    return rule


def play(story: Callable[[Stage], Coroutine[Any, Any, None]], *objects: Any) -> None:
    async def run() -> None:
        stage = Stage()
        await stage.scene.put(*objects)
        controller = await stage.controller()
        async with acting(controller.office, controller.loop()):
            await story(stage)

    asyncio.run(run())


NODE = a(LatticeNode, "n1", status={"capacity": {"cpu": 4000}})
BUSY = a_rule({"nodeCpu": {"above": 0.85, "for": "5m"}}, HOOK)


def test_a_node_that_stays_busy_calls_the_webhook_once() -> None:
    async def story(stage: Stage) -> None:
        stage.burn("n1", 3900)
        await stage.passes(290)
        assert stage.ear.heard == []
        await stage.passes(20)
        assert [(each["rule"], each["object"], each["url"], each["timeout"]) for each in stage.ear.heard] == [
            ("r", "latticenode/n1", "https://hooks.example/scale", 5.0)
        ]
        assert "3900m of 4000m cpu are in use (98 %)" in stage.ear.heard[0]["message"]
        await stage.passes(3600)
        assert len(stage.ear.heard) == 1, "it is still the same crossing"
        stage.burn("n1", 100)
        await stage.passes(10)
        stage.burn("n1", 3900)
        await stage.passes(310)
        assert len(stage.ear.heard) == 2
        assert (await stage.rule()).status.fired == 2

    play(story, NODE, BUSY)


def test_a_node_that_is_busy_now_and_then_does_not() -> None:
    async def story(stage: Stage) -> None:
        for _ in range(5):
            stage.burn("n1", 3900)
            await stage.passes(200)
            stage.burn("n1", 100)
            await stage.passes(20)
        assert stage.ear.heard == []

    play(story, NODE, BUSY)


def a_failing(attempts: int, name: str = "w", **meta: Any) -> LatticeWorkload:
    status = {"retry": {"attempts": attempts}, "failureReason": "RUNTIME_ERROR"}
    return a(LatticeWorkload, name, "default", meta=meta, spec={"containers": {"main": {"command": ["false"]}}}, status=status)


def test_a_workload_that_fails_again_and_again_raises_one_alert() -> None:
    async def story(stage: Stage) -> None:
        for attempts in (1, 2, 3, 4, 5):
            await stage.scene.put(a_failing(attempts))
            await stage.passes(1)
        events = await stage.scene.events()
        assert events.count("Alert w") == 1
        assert events.count("RuleFired r") == 1
        await stage.scene.put(a_failing(0))
        await stage.passes(1)
        await stage.scene.put(a_failing(3))
        await stage.passes(1)
        assert (await stage.scene.events()).count("Alert w") == 2

    play(story, a_rule({"workloadFailures": {"count": 3}}, ALERT))


def test_only_what_the_selector_means_is_watched() -> None:
    async def story(stage: Stage) -> None:
        await stage.scene.put(a_failing(3, "mine", labels={"app": "web"}), a_failing(3, "other"))
        await stage.passes(1)
        assert [each for each in await stage.scene.events() if each.startswith("Alert")] == ["Alert mine"]

    play(story, a_rule({"workloadFailures": {"count": 3, "selector": {"matchLabels": {"app": "web"}}}}, ALERT))


def test_a_rule_tries_again_and_stops_a_workload() -> None:
    async def story(stage: Stage) -> None:
        await stage.scene.put(a_failing(3))
        await stage.passes(1)
        found = await stage.scene.get(LatticeWorkload, "w", "default")
        assert found is not None
        assert RETRY_REQUESTED in found.metadata.annotations
        assert found.spec.desired_state == "Stopped"
        assert found.metadata.generation == 2

    play(story, a_rule({"workloadFailures": {"count": 3}}, {"retryWorkload": {}}, {"setDesiredState": {"state": "Stopped"}}))


def a_ledger(rate: int) -> LatticeLedger:
    spec = {"budget": {"kind": "LatticePool", "name": "p"}, "limitMicros": 744_000_000, "hard": True}
    lots = {"c": [{"nodeClass": "m", "count": 1, "micros": rate}]}
    status = {"committedMicros": rate, "month": "2026-01", "asOf": "2026-01-01T00:00:00.000000Z", "machines": lots}
    return a(LatticeLedger, "pool.p", spec=spec, status=status)


def test_a_budget_that_runs_out_and_a_pool_that_fills_up() -> None:
    async def story(stage: Stage) -> None:
        await stage.scene.put(a_ledger(800_000))
        await stage.passes(1)
        assert stage.ear.heard == []
        await stage.scene.put(a_ledger(950_000))
        await stage.passes(1)
        assert [each["object"] for each in stage.ear.heard] == ["latticeledger/pool.p"]
        assert "95.0 % of the budget" in stage.ear.heard[0]["message"]
        assert "Alert pool.p" in await stage.scene.events()

    play(story, a_rule({"budget": {"above": 0.9}}, HOOK, ALERT))


def test_a_pool_that_fills_up() -> None:
    async def story(stage: Stage) -> None:
        pool = a(LatticePool, "p", spec={"provider": {"type": "local"}}, status={"utilization": {"nodes": 0.5, "cores": "0.95"}})
        await stage.scene.put(pool)
        await stage.passes(1)
        assert [each["message"] for each in stage.ear.heard] == ["95 % of its cores are in use"]

    play(story, a_rule({"capacity": {"above": "0.9", "pool": "p"}}, HOOK))


def test_a_suspended_rule_watches_and_does_nothing_and_does_not_make_up_for_it() -> None:
    rule = a_rule({"workloadFailures": {"count": 3}}, ALERT, suspend=True)

    async def story(stage: Stage) -> None:
        await stage.scene.put(a_failing(3))
        await stage.passes(1)
        now = await stage.rule()
        assert list(now.status.crossed) == ["latticeworkload/default/w"]
        await stage.scene.put(msgspec.structs.replace(rule, spec=msgspec.structs.replace(rule.spec, suspend=False), status=now.status))
        await stage.passes(1)
        assert await stage.scene.events() == []

    play(story, rule)


def test_a_webhook_that_does_not_answer_is_tried_three_times_and_then_told_of() -> None:
    async def story(stage: Stage) -> None:
        stage.ear.deaf = 2
        await stage.scene.put(a_failing(3))
        await stage.passes(10)
        assert len(stage.ear.heard) == 1
        assert (await stage.rule()).status.last_error == ""
        stage.ear.deaf = 3
        await stage.scene.put(a_failing(3, "v"))
        await stage.passes(10)
        assert len(stage.ear.heard) == 1
        assert "cannot be reached" in (await stage.rule()).status.last_error
        assert "WebhookFailed r" in await stage.scene.events()

    play(story, a_rule({"workloadFailures": {"count": 3}}, HOOK))


def test_another_server_does_not_act_on_the_same_crossing_and_nothing_is_written_at_rest() -> None:
    async def run() -> None:
        stage = Stage()
        await stage.scene.put(a_rule({"workloadFailures": {"count": 3}}, HOOK), a_failing(3))
        for _ in range(2):
            controller = await stage.controller()
            async with acting(controller.office, controller.loop()):
                await stage.passes(5)
                first, *later = await revision_after(stage.scene, [40, 40])
                assert set(later) == {first}
        assert len(stage.ear.heard) == 1

    asyncio.run(run())
