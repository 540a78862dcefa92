"""Services find their place: as `plan` said, paid in the same commit, once, and never against what runs."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from placement.worlds import a_class, a_policy, a_pool, a_service, a_static, worlds
from service_world import Town, a_town, contents, play, puts
from store.virtual import VirtualClock

from lattice.controllers.ledgers import Ledgers, Payment
from lattice.controllers.services import FLEET
from lattice.errors import Conflict, Fenced, Unavailable
from lattice.kinds.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger, Lot
from lattice.kinds.pool import LatticePool
from lattice.kinds.quantity import micros
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.placement.money import Charge
from lattice.placement.plan import plan, settle
from lattice.placement.world import World
from lattice.store.memory import MemoryStore

PLAIN = (LatticeService, LatticeCluster, LatticeLedger, LatticeWorkload)


def test_a_service_is_placed_paid_and_told_in_one_commit() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=1000), a_service(replicas=2)) as town:
            before = await town.store.revision()
            await town.services.reconcile(FLEET)
            await town.caught_up()
            assert await town.store.revision() == before + 1
            assert town.placed() == {("p1-001", "m"): 2}
            assert town.machines() == {"p1-001": {"m": 1}}
            assert town.paid() == Counter({("p1-001", "m"): 1})
            placed = town.condition("Placed")
            assert placed is not None
            assert (placed.status, placed.reason, placed.observed_generation) == ("True", "Placed", 1)
            status = town.service().status
            assert status.last_scheduled == "2026-01-01T00:00:00Z"
            assert status.scheduler_decision is not None
            assert status.scheduler_decision.reason == "Placed in p1"
            assert sorted(each.reason for each in await town.events()) == ["ClusterCreated", "Placed"]

    play(script)


def test_what_is_decided_is_not_decided_again() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(), a_service(replicas=3), a_service("web")) as town:
            await town.look()
            revision = await town.store.revision()
            for _ in range(3):
                await town.services.reconcile(FLEET)
                await town.replicas.reconcile("default/api")
            assert await town.store.revision() == revision
            await town.bind()
            await town.look()
            revision = await town.store.revision()
            await town.services.reconcile(FLEET)
            assert await town.store.revision() == revision

    play(script)


def test_who_waits_is_told_once_however_long_it_takes_and_whoever_leads() -> None:
    async def script() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock)
        async with a_town(a_class(), a_pool(budget=10), a_service(), a_service("big", cores=64), store=store, clock=clock) as town:
            await town.look()
            assert len(await town.events("NotPlaced")) == 2
            before = await store.revision()
            for _ in range(3):
                clock.jump(3600)
                await town.services.reconcile(FLEET)
            assert await store.revision() == before
        async with a_town(store=store, clock=clock) as town:
            clock.jump(3600)
            await town.look()
            assert await store.revision() == before

    play(script)


def test_more_replicas_grow_the_cluster_and_pay_only_for_what_is_new() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
            await town.look()
            await town.bind()
            await town.apply(a_service(replicas=4, cores=4))
            await town.look()
            assert town.machines() == {"p1-001": {"m": 4}}
            assert town.paid() == Counter({("p1-001", "m"): 4})
            assert "p1-001" in (await town.events("ClusterGrown"))[0].message

    play(script)


def test_what_does_not_fit_is_told_and_what_fits_runs() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=3, cores=2)) as town:
            await town.look()
            assert town.placed() == {("p1-001", "m"): 2}
            placed = town.condition("Placed")
            assert placed is not None
            assert (placed.status, placed.reason) == ("False", "NotNow")
            assert placed.message.startswith("2 of 3 replicas are placed: ")
            assert len(town.workloads()) == 2
            assert [each.type for each in await town.events("NotPlaced")] == ["Warning"]
            await town.apply(a_pool(capacity={"maxNodes": 2}))
            await town.look()
            assert town.placed() == {("p1-001", "m"): 3}
            assert town.condition("Placed").status == "True"  # type: ignore[union-attr]

    play(script)


def test_two_services_want_the_last_money_and_the_first_by_name_has_it() -> None:
    async def script() -> None:
        pool = a_pool(budget=160)  # one machine at $0.20 for 744 hours is $148.80
        async with a_town(a_class(), pool, a_service("api", cores=3), a_service("web", cores=3)) as town:
            await town.look()
            assert town.placed("api") == {("p1-001", "m"): 1}
            assert town.placed("web") == {}
            assert town.condition("Placed", "web").reason == "OverBudget"  # type: ignore[union-attr]
            assert town.paid() == Counter({("p1-001", "m"): 1})

    play(script)


def test_a_budget_that_was_lowered_meanwhile_refuses_and_nothing_else_is_written() -> None:
    """The copy of the pool is stopped at what it was: only the store knows of the lower budget."""

    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=1000), a_service()) as town:
            decide = town.services._decide

            async def and_then_lowered(refused: Any) -> Any:
                found = await decide(refused)
                if not refused:
                    await town.apply(a_pool(budget=10))
                return found

            town.services._decide = and_then_lowered  # type: ignore[method-assign]
            await town.services.reconcile(FLEET)
            await town.caught_up()
            decision = town.service().status.scheduler_decision
            assert decision is not None
            assert decision.verdict == "OverBudget"
            assert decision.reason.startswith("over budget: ")
            assert "needs $0.20/h" in decision.reason
            assert town.machines() == {}
            assert town.all(LatticeLedger) == []
            assert town.placed() == {}

    play(script)


def test_a_service_that_changed_while_it_was_decided_is_decided_again() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(), a_service()) as town:
            decide = town.services._decide

            async def and_then_scaled(refused: Any) -> Any:
                found = await decide(refused)
                await town.apply(a_service(replicas=2))
                return found

            town.services._decide = and_then_scaled  # type: ignore[method-assign]
            with pytest.raises(Conflict, match="changed while its place was decided"):
                await town.services.reconcile(FLEET)
            assert town.placed() == {}
            town.services._decide = decide  # type: ignore[method-assign]
            await town.look()
            assert sum(town.placed().values()) == 2

    play(script)


def test_a_term_that_is_over_writes_nothing() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(), a_service()) as town:
            await town.store.campaign("controllers", "me", 15.0)
            before = await town.store.revision()
            with pytest.raises(Fenced):
                await town.services.reconcile(FLEET)
            assert await town.store.revision() == before

    play(script)


@pytest.mark.parametrize("hidden", ["p1", "certificate"])
def test_what_runs_stays_when_its_place_is_not_right_any_more(hidden: str) -> None:
    async def script() -> None:
        pools = [a_pool("p1", labels={"compliance": ["gdpr"]}), a_pool("p2", labels={"compliance": ["gdpr"]}, capacity={"maxNodes": 0})]
        async with a_town(a_class(), *pools, a_service(replicas=2, compliance=["gdpr"])) as town:
            await town.look()
            await town.bind()
            await town.look()
            assert town.condition("PlacementStale").status == "False"  # type: ignore[union-attr]
            before = [each.metadata.uid for each in town.live()]
            if hidden == "p1":
                await town.apply(a_pool("p1"), a_pool("p2", labels={"compliance": ["gdpr"]}))
            else:
                await town.apply(a_policy(compliance=["soc2"]))
            await town.look()
            stale = town.condition("PlacementStale")
            assert stale is not None
            assert (stale.status, stale.reason) == ("True", "WouldMove")
            assert "p1" in stale.message
            assert [each.metadata.uid for each in town.live()] == before
            assert len(await town.events("PlacementStale")) == 1
            await town.apply(a_pool("p1", labels={"compliance": ["gdpr", "soc2"]}))
            await town.look()
            assert town.condition("PlacementStale").status == "False"  # type: ignore[union-attr]

    play(script)


def test_a_reference_to_nobody_is_named_until_it_is_there() -> None:
    async def script() -> None:
        service = a_service(dependencies={"db": {"type": "service"}})
        async with a_town(a_class(), a_pool(), service) as town:
            await town.look()
            said = town.condition("ReferencesResolved")
            assert said is not None
            assert (said.status, said.reason, said.message) == ("False", "ServiceNotFound", "no LatticeService default/db")
            await town.apply(a_service("db"))
            await town.look()
            assert town.condition("ReferencesResolved").status == "True"  # type: ignore[union-attr]

    play(script)


def test_machines_are_given_up_when_those_on_them_are_gone_and_not_before() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=3, cores=4), a_service("web", cores=4)) as town:
            await town.look()
            await town.bind()
            await town.apply(a_service(replicas=1, cores=4))
            await town.look()
            assert town.placed() == {("p1-001", "m"): 1}
            assert town.machines() == {"p1-001": {"m": 4}}
            await town.finish()
            await town.look()
            assert town.machines() == {"p1-001": {"m": 2}}
            assert town.paid() == Counter({("p1-001", "m"): 4}), "released by whoever confirms that they are gone"

    play(script)


def test_a_service_that_is_deleted_leaves_its_cluster_empty_in_the_end() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(), a_policy(clusters={"minNodes": 2}), a_service(replicas=2)) as town:
            await town.look()
            await town.bind()
            await town.remove(LatticeService, "api", "default")
            await town.look()
            assert town.machines() == {"p1-001": {"m": 2}}
            await town.finish()
            await town.look()
            assert town.machines() == {"p1-001": {}}
            assert town.all(LatticeCluster)[0].spec.min_nodes == 0

    play(script)


def test_machines_that_were_paid_for_and_never_made_are_paid_back() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4), a_service("web", cores=4)) as town:
            await town.look()
            assert town.paid() == Counter({("p1-001", "m"): 3})
            for name in ("api", "web"):
                await town.remove(LatticeService, name, "default")
            await town.finish()
            await town.look()
            assert town.machines() == {"p1-001": {}}
            assert town.paid() == Counter()
            assert town.all(LatticeLedger)[0].status.committed_micros == 0

    play(script)


def test_a_machine_on_its_way_out_is_not_paid_for_twice_when_it_is_wanted_again() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
            await town.look()
            await town.bind()
            await town.apply(a_service(replicas=1, cores=4))
            await town.look()
            await town.finish()
            await town.look()
            assert town.machines() == {"p1-001": {"m": 1}}
            await town.apply(a_service(replicas=2, cores=4))
            await town.look()
            assert town.machines() == {"p1-001": {"m": 2}}
            assert town.paid() == Counter({("p1-001", "m"): 2})

    play(script)


def test_replicas_that_no_node_takes_get_a_machine_more_after_a_while() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2), grace=10.0) as town:
            await town.look()
            await town.bind(per_node=1)
            waiting = next(each for each in town.live() if each.status.binding is None)
            await town.stick(waiting)
            await town.look()
            assert town.machines() == {"p1-001": {"m": 1}}, "not at once"
            town.clock.jump(10)
            await town.services.reconcile(FLEET)
            await town.caught_up()
            assert town.machines() == {"p1-001": {"m": 2}}
            assert town.paid() == Counter({("p1-001", "m"): 2})
            assert (await town.events("NoNodeFits"))[0].message == "no node of p1-001 takes 1 of its replicas: 1 more of class m for it"
            town.clock.jump(100)
            await town.services.reconcile(FLEET)
            await town.caught_up()
            assert town.machines() == {"p1-001": {"m": 2}}, "the one that was bought is still to come"
            await town.bind(per_node=1)
            await town.look()
            assert town.machines() == {"p1-001": {"m": 2}}

    play(script)


def test_replicas_that_no_node_takes_go_elsewhere_where_the_cluster_may_not_grow() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(capacity={"maxNodes": 1}), a_service(replicas=2), grace=10.0) as town:
            await town.look()
            await town.bind(per_node=1)
            await town.apply(a_pool("p2"))
            await town.look()
            await town.stick(next(each for each in town.live() if each.status.binding is None))
            town.clock.jump(11)
            await town.look()
            assert town.placed() == {("p1-001", "m"): 1, ("p2-001", "m"): 1}
            assert Counter(each.spec.cluster for each in town.live()) == Counter({"p1-001": 1, "p2-001": 1})
            assert "they are placed elsewhere" in (await town.events("NoNodeFits"))[0].message

    play(script)


def test_replicas_of_a_lost_node_get_a_machine_more_when_no_other_takes_them() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(), a_service(replicas=2, cores=4), grace=10.0) as town:
            await town.look()
            await town.bind()
            lost = town.live()[0]
            assert lost.status.binding is not None
            await town.lose(lost.status.binding.node)
            await town.change(lost, binding=None, ready=False, actual_state="Pending")
            await town.stick(next(each for each in town.live() if each.status.binding is None))
            town.clock.jump(11)
            await town.look(times=3)
            assert town.machines() == {"p1-001": {"m": 3}}
            assert [each.metadata.name for each in town.live()] == ["api-0", "api-1"], "the same replicas"
            assert town.placed() == {("p1-001", "m"): 2}

    play(script)


def test_a_pool_that_is_gone_takes_nothing_with_it_that_runs() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool("p1"), a_service(replicas=2)) as town:
            await town.look()
            await town.bind()
            before = [each.metadata.uid for each in town.live()]
            await town.remove(LatticePool, "p1")
            await town.apply(a_pool("p2"))
            await town.look()
            assert town.placed() == {("p1-001", "m"): 2}
            assert [each.metadata.uid for each in town.live()] == before
            stale = town.condition("PlacementStale")
            assert stale is not None
            assert (stale.status, stale.message) == ("True", "it would not be put there today, and stays: p1: is not offered any more")
            await town.apply(a_service(replicas=3))
            await town.look()
            assert town.placed() == {("p1-001", "m"): 2, ("p2-001", "m"): 1}
            await town.bind()
            await town.apply(a_service(replicas=1))
            await town.look()
            assert town.placed() == {("p2-001", "m"): 1}, "those that would not be put there go first"

    play(script)


def test_what_one_budget_refuses_holds_up_nobody_else() -> None:
    """Both are written together at first; then the one that is too dear is left out."""

    async def script() -> None:
        pools = [a_pool("p1", budget=1000, labels={"tier": "one"}), a_pool("p2", budget=1000, labels={"tier": "two"})]
        one, two = ({"matchLabels": {"tier": tier}} for tier in ("one", "two"))
        async with a_town(a_class(), *pools, a_service("api", pools=one), a_service("web", pools=two)) as town:
            decide = town.services._decide

            async def and_then_lowered(refused: Any) -> Any:
                found = await decide(refused)
                if not refused:
                    await town.apply(a_pool("p1", budget=10, labels={"tier": "one"}))
                return found

            town.services._decide = and_then_lowered  # type: ignore[method-assign]
            await town.services.reconcile(FLEET)
            await town.caught_up()
            assert town.placed("api") == {}
            assert town.condition("Placed", "api").reason == "OverBudget"  # type: ignore[union-attr]
            assert town.placed("web") == {("p2-001", "m"): 1}
            assert town.machines() == {"p2-001": {"m": 1}}

    play(script)


def test_a_machine_whose_payment_was_given_back_meanwhile_is_paid_for_again() -> None:
    async def script() -> None:
        async with a_town(a_class(), a_pool(budget=10_000), a_service(replicas=2, cores=4)) as town:
            await town.look()
            ledger = town.all(LatticeLedger)[0]
            lot = Lot(node_class="m", count=1, micros=200_000)
            books = Ledgers(town.store, town.clock, town.office.term)
            await books.commit_with_charges(Payment([], releases=[Charge((ledger.spec.budget,), "p1-001", lot)]))
            await town.caught_up()
            assert town.paid() == Counter({("p1-001", "m"): 1})
            await town.look()
            assert town.paid() == Counter({("p1-001", "m"): 2})

    play(script)


def test_a_service_of_many_clusters_is_placed_in_several_commits() -> None:
    async def script() -> None:
        clusters = {"maxNodes": 1}
        async with a_town(a_class(), a_pool(budget=100_000), a_policy(clusters=clusters), a_service(replicas=120, cores=4)) as town:
            before = await town.store.revision()
            await town.services.reconcile(FLEET)
            await town.caught_up()
            assert len(town.machines()) == 120
            assert sum(town.placed().values()) == 120
            assert town.paid().total() == 120
            assert await town.store.revision() == before + 4

    play(script)


# --- as plan says ---


def stored(world: World) -> list[Kind]:
    return [*world.objects.values()]


async def committed(town: Town) -> tuple[dict[str, Any], dict[str, Any], dict[str, int]]:
    """Where services are and for how much, machines, and what each ledger pays."""
    where = {
        f"default/{each.metadata.name}": {(placed.pool, placed.cluster, placed.node): placed.replicas for placed in each.status.placements}
        for each in town.all(LatticeService)
    }
    machines = {each.metadata.name: dict(each.spec.nodes) for each in town.all(LatticeCluster) if each.spec.nodes}
    rates = {each.metadata.name: each.status.committed_micros for each in town.all(LatticeLedger) if each.status.committed_micros}
    return where, machines, rates


def shares(town: Town) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in town.all(LatticeService):
        costs = [placed.cost.hourly for placed in each.status.placements if placed.cost and placed.cost.hourly is not None]
        if costs:
            found[f"default/{each.metadata.name}"] = sum(map(micros, costs))
    return found


@settings(max_examples=40, deadline=None)
@given(world=worlds())
def test_what_is_committed_is_what_plan_said(world: World) -> None:
    async def script() -> None:
        clock = VirtualClock()
        said = settle(replace(world, now=clock.now()))
        async with a_town(*stored(world), clock=clock, tables=lambda: (world.book, "", "")) as town:
            await town.services.reconcile(FLEET)
            await town.caught_up()
            where, machines, rates = await committed(town)
            assert {name: each for name, each in where.items() if each} == {name: dict(each) for name, each in said.where.items()}
            assert machines == {name: dict(each) for name, each in said.clusters.items()}
            assert rates == {name: rate for name, rate in said.fleet.committed.items() if rate}
            assert shares(town) == {name: said.costs.get(name, 0) for name in said.where}

    play(script)


@settings(max_examples=40, deadline=None)
@given(world=worlds())
def test_one_service_more_goes_where_plan_said_and_costs_what_it_said(world: World) -> None:
    """Everything else is bound by then, so that both see the same machines."""

    async def script() -> None:
        clock = VirtualClock()
        late = world.services["default/web"]
        rest = [each for each in stored(world) if each is not late]
        async with a_town(*rest, clock=clock, tables=lambda: (world.book, "", "")) as town:
            await town.look()
            await town.bind()
            await town.look()
            objects = [each for copy in town.office.copies for each in copy.all()]
            now = replace(World.of(objects, world.book), now=clock.now())
            said = plan(now, [late])
            assert said.after is not None
            await town.apply(late)
            await town.services.reconcile(FLEET)
            await town.caught_up()
            where, machines, rates = await committed(town)
            assert {name: each for name, each in where.items() if each} == {name: dict(each) for name, each in said.after.where.items()}
            assert machines == {name: dict(each) for name, each in said.after.clusters.items()}
            assert rates == {name: rate for name, rate in said.after.fleet.committed.items() if rate}

    play(script)


# --- crashes ---


class Failing:
    """Its nth commit is made, and nobody hears of it; or is not made at all."""

    def __init__(self, store: MemoryStore, at: int, *, lost: bool) -> None:
        self._store, self._left, self._lost = store, at, lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, *arguments: Any, **more: Any) -> int:
        self._left -= 1
        if self._left == 0 and not self._lost:
            await self._store.commit(*arguments, **more)
        if self._left <= 0:
            raise Unavailable("the store does not answer", fix="try again")
        return await self._store.commit(*arguments, **more)


WORLD = (
    a_class(),
    a_pool("p1", budget=400),
    a_pool("p2"),
    a_static(),
    a_service("api", replicas=150),
    a_service("web", replicas=4, cores=3),
)


async def _run_to_the_end(store: MemoryStore, clock: VirtualClock) -> dict[str, Any]:
    async with a_town(store=store, clock=clock) as town:
        await town.look()
    return await contents(store, *PLAIN)


@pytest.mark.parametrize("lost", [False, True], ids=["made and not heard of", "never made"])
def test_a_crash_at_any_commit_ends_in_the_same_state(*, lost: bool) -> None:
    async def whole() -> dict[str, Any]:
        clock = VirtualClock()
        store = MemoryStore(clock)
        await store.commit(puts(WORLD))
        return await _run_to_the_end(store, clock)

    async def script() -> None:
        expected, at, crashed = await whole(), 0, True
        while crashed:
            at += 1
            clock = VirtualClock()
            store = MemoryStore(clock)
            await store.commit(puts(WORLD))
            try:
                async with a_town(store=Failing(store, at, lost=lost), clock=clock) as town:
                    await town.look()
                crashed = False
            except Unavailable:
                assert await _run_to_the_end(store, clock) == expected, f"after commit {at}"
        assert at >= 3

    play(script)
