"""Crossing the alert threshold, the limit and capacity pressure: one event and one webhook call per crossing."""

from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from build.cluster_world import a_cluster
from build.control_plane import ControlPlane, running_loops
from build.objects import make_object

from lattice.controllers.automation.webhook_queue import WebhookQueue
from lattice.controllers.services.supply_status import SupplyStatusController
from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.placement.model.fleet import Fleet
from lattice.store.memory import MemoryStore
from lattice.store.protocol import MAX_COMMIT_OPERATIONS, RevisionConflict, Write

NANO = make_object(
    LatticeNodeClass,
    "nano",
    spec={
        "providers": {"local": {}},
        "resources": {"cores": 1, "memoryGi": 1},
        "costPerHour": {"local": 0.1},
    },
)
NOTIFY = {"notify": {"webhook": {"url": "https://hooks.example/budget", "secretRef": "hook-key"}}}
KEY = make_object(Secret, "hook-key", "lattice-system", data={"key": b64encode(b"shared").decode()})


async def here() -> dict[str, None]:
    return {"local": None, "aws": None}


def a_north_pool(limit: float | None = 100, **spec: Any) -> LatticePool:
    budget = {} if limit is None else {"budget": {"maxMonthlyCost": limit}}
    place = {"type": "local", "region": "north"}
    pool = make_object(
        LatticePool, "north", spec={"provider": place, "nodeClasses": ["nano"], **budget, **spec}
    )
    assert not list(pool.problems())
    return pool


def a_north_ledger(machines: int, micros: int = 100_000, refused: int = 0) -> LatticeLedger:
    return a_ledger("LatticePool", "north", machines, micros, refused=refused)


def a_ledger(
    kind: str, name: str, machines: int, micros: int, region: str = "", refused: int = 0
) -> LatticeLedger:
    account = {"kind": kind, "name": name, **({"region": region} if region else {})}
    prefix = "pool" if kind == "LatticePool" else "cloud"
    lots = {"north-001": [{"nodeClass": "nano", "count": machines, "micros": micros}]} if machines else {}
    refusal = {
        "service": "default/api",
        "rule": "RunRate",
        "needMicros": 100_000,
        "limitNeededMicros": refused,
    }
    status = {
        "committedMicros": machines * micros,
        "month": "2026-01",
        "asOf": "2026-01-01T00:00:00.000000Z",
        "machines": lots,
        "refused": [refusal] if refused else [],
    }
    return make_object(
        LatticeLedger, ".".join(filter(None, (prefix, name, region))), spec={"budget": account}, status=status
    )


class Receiver:
    """A webhook receiver that records calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, bytes]] = []

    async def post(self, url: str, body: Any, timeout: float, signing_key: bytes = b"") -> None:
        self.calls.append((body["object"], body["reason"], signing_key))


async def at_once(think: Any) -> Fleet:
    fleet: Fleet = think()
    return fleet


class Supply:
    """The supply status controller and the webhook queue, in one term after another."""

    def __init__(self) -> None:
        self.plane, self.receiver = ControlPlane(), Receiver()

    async def settle(self, *objects: Kind) -> list[str]:
        """Put the objects, let a new leader reconcile, and return the new events."""
        await self.plane.put(*objects)
        before = len(await self.events())
        context = await self.plane.new_term()
        queue = WebhookQueue(context, self.receiver)
        supply = SupplyStatusController(
            context,
            here,
            min_interval_s=0,
            run_in_background=at_once,
            notify=queue.enqueue,
        )
        async with running_loops(context, queue.loop(), supply.loop()):
            for _ in range(20):
                await self.plane.clock.advance(0.1)
        return (await self.events())[before:]

    async def events(self) -> list[str]:
        crossings = ("Budget", "Capacity", "Webhook")
        return [event for event in await self.plane.events() if event.startswith(crossings)]


async def test_budget_crossings_are_reported_once_each() -> None:
    """The audit's M8: the ledger went to Alert, and no event was written."""
    supply = Supply()
    limit = 0.2 * 744  # two machines for the 31 days of January
    await supply.settle(NANO, KEY, a_cluster(1), a_north_pool(limit, **NOTIFY), a_north_ledger(1))
    assert await supply.events() == []
    assert await supply.settle(a_north_ledger(1, 165_000)) == ["BudgetAlert north"]
    # Another leader repeats nothing, and neither does a change within rounding of the threshold.
    assert await supply.settle() == []
    assert await supply.settle(a_north_ledger(1, 159_990)) == []
    assert await supply.settle(a_north_ledger(1, 165_000)) == []
    assert await supply.settle(a_north_ledger(2)) == ["BudgetExceeded north"]
    assert await supply.settle(a_north_ledger(1)) == [
        "BudgetAlertCleared north",
        "BudgetExceededCleared north",
    ]
    assert supply.receiver.calls == [
        ("latticepool/north", reason, b"shared")
        for reason in ("BudgetAlert", "BudgetExceeded", "BudgetAlertCleared", "BudgetExceededCleared")
    ]


async def test_refused_purchase_is_a_crossing_of_the_limit() -> None:
    supply = Supply()
    await supply.settle(NANO, a_cluster(1), a_north_pool(138.24), a_north_ledger(1))
    assert await supply.settle(a_north_ledger(1, refused=148_800_000)) == ["BudgetExceeded north"]
    pool = await supply.plane.get(LatticePool, "north")
    assert pool is not None
    assert pool.status.phase == "BudgetExceeded"
    (message,) = (each.message for each in pool.status.conditions if each.type == "BudgetExceeded")
    assert "refused for default/api" in message
    assert "a limit of $148.80 would do" in message
    assert await supply.settle(a_north_ledger(1)) == ["BudgetExceededCleared north"]


async def test_removed_limit_clears_the_conditions() -> None:
    supply = Supply()
    await supply.settle(NANO, a_cluster(1), a_north_pool(10), a_north_ledger(1))
    pool = await supply.plane.get(LatticePool, "north")
    assert pool is not None
    unlimited = msgspec.structs.replace(pool, spec=a_north_pool(None).spec)
    assert await supply.settle(unlimited) == [
        "BudgetAlertCleared north",
        "BudgetExceededCleared north",
    ]


async def test_capacity_pressure_is_reported_up_and_down() -> None:
    supply = Supply()
    await supply.settle(NANO, a_cluster(3), a_north_pool(None, capacity={"maxNodes": 5}))
    assert await supply.settle(a_cluster(4)) == ["CapacityPressure north"]
    assert await supply.settle(a_cluster(3)) == ["CapacityPressureCleared north"]


async def test_region_of_a_cloud_crosses_on_its_own() -> None:
    supply = Supply()
    spec = {
        "provider": "aws",
        "budget": {"monthly": 10_000},
        "regions": {"r1": {"budget": {"monthly": 100, "hardLimit": True}}, "r2": {}},
    }
    cloud = make_object(CloudInfrastructure, "aws", spec=spec)
    quiet = [a_ledger("CloudInfrastructure", "aws", 1, 50_000, region) for region in ("", "r1")]
    await supply.settle(NANO, cloud, *quiet)
    assert await supply.events() == []
    busy = [a_ledger("CloudInfrastructure", "aws", 1, 200_000, region) for region in ("", "r1")]
    assert await supply.settle(*busy) == ["BudgetAlert aws", "BudgetExceeded aws"]
    stored = await supply.plane.get(CloudInfrastructure, "aws")
    assert stored is not None
    assert stored.status.region_budgets["r1"].phase == "Exceeded"
    (condition,) = (each for each in stored.status.conditions if each.type == "BudgetExceeded")
    assert (condition.status, condition.reason) == ("True", "RegionExceeded")
    assert condition.message.startswith("region r1: ")
    assert await supply.settle() == []


async def test_missing_signing_key_is_reported_and_nothing_is_sent() -> None:
    supply = Supply()
    events = await supply.settle(NANO, a_cluster(1), a_north_pool(10, **NOTIFY), a_north_ledger(1))
    assert events == ["BudgetAlert north", "BudgetExceeded north"]
    assert supply.receiver.calls == []


@pytest.mark.parametrize(
    ("webhook", "field", "words"),
    [
        pytest.param({"url": "http://hooks.example"}, "spec.notify.webhook.url", "https", id="plain http"),
        pytest.param(
            {"url": "https://u:p@hooks.example"}, "spec.notify.webhook.url", "password", id="a password"
        ),
        pytest.param(
            {"url": "https://hooks.example", "timeout": "5m"},
            "spec.notify.webhook.timeout",
            "30s",
            id="too long",
        ),
        pytest.param(
            {"url": "https://hooks.example", "secretRef": "No Name"},
            "spec.notify.webhook.secretRef",
            "",
            id="no name of a secret",
        ),
    ],
)
def test_wrong_webhook_is_refused_with_its_path(webhook: dict[str, str], field: str, words: str) -> None:
    place = {"type": "local", "region": "north"}
    pool = make_object(LatticePool, "p", spec={"provider": place, "notify": {"webhook": webhook}})
    cloud = make_object(CloudInfrastructure, "c", spec={"provider": "aws", "notify": {"webhook": webhook}})
    for obj in (pool, cloud):
        (cause,) = obj.problems()
        assert cause.field == field
        assert words in cause.message


def a_cloud_with_a_strict_region(own_limit: float | None) -> CloudInfrastructure:
    spec = {"provider": "aws", "regions": {"r1": {"budget": {"monthly": 1000, "hardLimit": True}}, "r2": {}}}
    budget = {} if own_limit is None else {"budget": {"monthly": own_limit}}
    return make_object(CloudInfrastructure, "aws", spec={**spec, **budget})


async def test_refused_purchase_of_a_region_is_no_alert() -> None:
    """Its use is 4 % of the limit: only the limit is crossed."""
    supply, account = Supply(), ("CloudInfrastructure", "aws", 1, 50_000, "r1")
    await supply.settle(NANO, a_cloud_with_a_strict_region(None), a_ledger(*account))
    assert await supply.settle(a_ledger(*account, refused=2_000_000_000)) == ["BudgetExceeded aws"]
    assert await supply.settle() == []
    assert await supply.settle(a_ledger(*account)) == ["BudgetExceededCleared aws"]


async def test_alert_ends_with_the_limit_although_regions_keep_theirs() -> None:
    supply = Supply()
    busy = [a_ledger("CloudInfrastructure", "aws", 1, 100_000, region) for region in ("", "r1")]
    await supply.settle(NANO, a_cloud_with_a_strict_region(90), *busy)
    assert await supply.events() == ["BudgetAlert aws"]
    stored = await supply.plane.get(CloudInfrastructure, "aws")
    assert stored is not None
    unlimited = msgspec.structs.replace(stored, spec=a_cloud_with_a_strict_region(None).spec)
    assert await supply.settle(unlimited) == ["BudgetAlertCleared aws"]
    assert await supply.settle() == []


class BusyStore(MemoryStore):
    """Another writer is first, once, in the commit that writes the pool."""

    rival_of = ""

    async def commit(self, writes: Sequence[Write], **options: Any) -> int:
        for write in writes:
            if self.rival_of and write.key.name == self.rival_of:
                self.rival_of = ""
                raise RevisionConflict(write.key, 1, 2)
        return await super().commit(writes, **options)


async def test_webhook_is_called_although_a_later_commit_fails() -> None:
    """The crossing is stored with the first commit: no later reconcile finds it again."""
    supply = Supply()
    supply.plane.store = store = BusyStore(supply.plane.clock)
    # With two events each, the statuses take two commits.
    names = [f"pool-{number:02}" for number in range(MAX_COMMIT_OPERATIONS // 3 + 2)]
    spec = msgspec.to_builtins(a_north_pool(10, **NOTIFY).spec)
    await supply.settle(NANO, KEY, *(make_object(LatticePool, name, spec=spec) for name in names))
    assert supply.receiver.calls == []
    store.rival_of = names[-1]
    await supply.settle(*(a_ledger("LatticePool", name, 1, 100_000) for name in names))
    assert store.rival_of == ""
    assert Counter(supply.receiver.calls) == Counter(
        (f"latticepool/{name}", reason, b"shared")
        for name in names
        for reason in ("BudgetAlert", "BudgetExceeded")
    )


async def test_status_that_arrives_late_is_no_crossing_again() -> None:
    """The write of the reconcile before reaches the cache late, as after a stalled watch."""
    supply = Supply()
    await supply.settle(NANO, a_cluster(1), a_north_pool(10), a_north_ledger(1))
    written = await supply.plane.get(LatticePool, "north")
    assert written is not None
    earlier = msgspec.structs.replace(written, status=type(written.status)())
    await supply.plane.put(earlier)
    context = await supply.plane.new_term()
    before = len(await supply.events())

    async def receive_late(think: Any) -> Fleet:
        fleet: Fleet = think()
        if (await supply.plane.get(LatticePool, "north")) == earlier:
            await supply.plane.put(written)
        return fleet

    controller = SupplyStatusController(context, here, min_interval_s=0, run_in_background=receive_late)
    async with running_loops(context, controller.loop()):
        for _ in range(20):
            await supply.plane.clock.advance(0.1)
    assert (await supply.events())[before:] == []
    stored = await supply.plane.get(LatticePool, "north")
    assert stored is not None
    assert stored.status.phase == "BudgetExceeded"
