"""Tests of `fit`: every suggestion is sufficient when applied, and no part of it can be left out."""

from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import combinations
from typing import Any

import msgspec
import pytest
from build.joined_machines import a_joined_machine, a_manual_world
from build.placed_worlds import a_placed_world
from build.property_settings import LONG
from build.worlds import a_class, a_cloud, a_policy, a_pool, a_service, a_static, a_world, seed_world, worlds
from hypothesis import HealthCheck, Phase, given, note, settings

from lattice.kinds.meta.base import Kind
from lattice.kinds.service import LatticeService
from lattice.placement.explain.verdict import judge
from lattice.placement.fit.fit import MAX_EDITS, Suggestion, fit
from lattice.placement.model.object_changes import ObjectChange, apply_changes
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge, plan
from lattice.placement.queries.dispatch import answer_query

NO_SHRINKING = [Phase.explicit, Phase.reuse, Phase.generate]  # shrinking a world takes minutes
SOME = settings(
    max_examples=3000 if LONG else 8,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=NO_SHRINKING,
)
API = "default/api"
NEW_GPU = (
    "define node class api-machine with 1 cpu and 1 gpu and 1Gi memory on aws (price unknown); "
    "and allow machines of class api-machine in p1"
)


def fits(world: World, name: str, changes: tuple[ObjectChange, ...] = ()) -> bool:
    """Whether the service is placed in the whole world, with all waiting services, after the changes are
    applied."""
    return (
        name not in plan(with_stated_latency(world, changes), apply_changes(world.objects, changes)).unplaced
    )


def with_stated_latency(world: World, changes: tuple[ObjectChange, ...]) -> World:
    """The world with the lines that the changes add to its latency file."""
    lines = [change.latency for change in changes if change.latency and change.rewrite is None]
    text = "".join(f"{a},{b},{ms}\n" for a, b, ms in lines)
    return replace(world, latency_csv=(world.latency_csv or "from,to,ms\n") + text) if text else world


def check(world: World, name: str, suggestion: Suggestion) -> None:
    """A suggestion is sufficient and minimal in its parts and numbers; otherwise it names the services that
    are served first."""
    if not suggestion.is_enough:
        check_ahead(world, name, suggestion)
        return
    stated = with_stated_latency(world, suggestion.edits)
    found = plan(stated, apply_changes(world.objects, suggestion.edits))
    assert name not in found.unplaced, suggestion.sentence
    assert found.total[1] - sum(converge(world).offer_rates.values()) == suggestion.rate_increase, (
        f"{suggestion.sentence}: another price"
    )
    for size in range(len(suggestion.edits)):
        for some in combinations(suggestion.edits, size):
            assert not fits(world, name, some), f"enough: {[each.sentence for each in some]}"
    problems = [
        str(each) for kind in apply_changes(world.objects, suggestion.edits) for each in kind.problems()
    ]
    assert not problems
    check_numbers(world, name, suggestion)


def check_ahead(world: World, name: str, suggestion: Suggestion) -> None:
    """Without the services ahead the suggestion is sufficient; services within its latency limits stay."""
    assert suggestion.services_ahead
    assert not fits(world, name, suggestion.edits)
    kept = latency_dependencies(world.with_objects(apply_changes(world.objects, suggestion.edits)), name)
    gone = [each for each in suggestion.services_ahead if each not in kept]
    assert fits(without_missing_replicas(world, gone), name, suggestion.edits), (
        "others than those are in its way"
    )


def without_missing_replicas(world: World, names: list[str]) -> World:
    """The world in which the named services request no more replicas than they have."""
    seats = world.build_fleet().assignments
    have = {name: len(seats.get(name, ())) for name in names}
    fewer = [
        msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, replicas=msgspec.structs.replace(each.spec.replicas, min=have[name])))
        for name, each in world.services.items() if have.get(name)
    ]  # fmt: skip
    return world.with_objects(
        fewer, [("LatticeService", *name.split("/")) for name in names if not have[name]]
    )


def latency_dependencies(world: World, name: str) -> set[str]:
    """Services that the service has latency limits to, transitively."""
    found, waiting = set[str](), [name]
    while waiting:
        more = {
            target for _, target in world.demands[waiting.pop()].latency_to if target in world.demands
        } - found
        found |= more
        waiting += more
    return found


UNITS: dict[str, int | Decimal] = {  # the smallest step of each numeric field
    "maxNodes": 1, "maxCores": 1, "maxMemoryGi": 1, "maxClusters": 1, "maxClustersPerRegion": 1, "minNodes": 1, "minRegions": 1, "min": 1, "max": 1,
    "maxMs": 1, "maxMonthlyCost": Decimal("0.000001"), "monthly": Decimal("0.000001"), "maxMonthlySpend": Decimal("0.000001"),
    "cores": Decimal("0.001"), "memoryGi": Decimal(1) / 1024,
}  # fmt: skip


def check_numbers(world: World, name: str, suggestion: Suggestion) -> None:
    """With any number one step closer to its old value the suggestion is not sufficient."""
    for change in suggestion.edits:
        unit = UNITS.get(change.path.rpartition(".")[2])
        if unit is None:
            continue
        before, after = Decimal(str(change.old_value or 0)), Decimal(str(change.new_value))
        nearer = after - unit if after > before else after + unit
        others = [each for each in suggestion.edits if each is not change]
        weaker = replace(change, new_value=nearer, rewrite=partial(with_field, change.path, nearer))
        assert not fits(world, name, (*others, weaker)), f"{change.path} {nearer} is enough, too"


def with_field(path: str, value: Decimal, kind: Kind) -> Kind:
    document = msgspec.to_builtins(kind, builtin_types=(Decimal,))
    inner = document
    *steps, last = path.split(".")
    for step in steps:
        inner = inner.setdefault(step, {})
    inner[last] = int(value) if isinstance(UNITS[last], int) else value
    return msgspec.convert(document, type(kind))


def suggestion_texts(world: World, name: str = API) -> list[str]:
    found = fit(world, name)
    for each in found:
        check(world, name, each)
    return [each.sentence for each in found]


DB = a_service("db", requiredRegions=["p1"])
TAINTED: dict[str, Any] = {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}
FULL = [a_service("aaa", cores=3), a_pool(capacity={"maxNodes": 1})]
CASES = [
    pytest.param([a_pool(), a_service(compliance=["gdpr"])],
                 ["add compliance gdpr to p1", "do not require compliance gdpr"], id="a compliance standard is missing"),
    pytest.param([a_cloud(), a_service(capabilities=["gpu"], dataResidency="eu")],
                 ["add capability gpu to cloud/r1; and add data residency eu to cloud/r1",
                  "do not require capability gpu; and do not require data residency eu"], id="two properties are missing in a cloud"),
    pytest.param([a_pool(labels={"tier": "test"}), a_service(pools={"matchLabels": {"tier": "prod"}})],
                 ["label p1 with tier=prod", "do not require pools with tier=prod"], id="a label is missing"),
    pytest.param([a_pool(), a_policy(compliance=["gdpr"]), a_service()],
                 ["add compliance gdpr to p1", "do not require compliance gdpr in policy rules"], id="a policy asks for the compliance standard"),
    pytest.param([a_pool(), a_service(cores=6)],
                 ["lower cpu per replica from 6 to 4",
                  NEW_GPU.replace("1 cpu and 1 gpu", "6 cpu")], id="no machine has so many cores"),
    pytest.param([a_class(), a_class("xl", 8, 32, 0.4), a_pool(), a_service(cores=6)],
                 ["lower cpu per replica from 6 to 4", "allow machines of class xl in p1"], id="a bigger class exists"),
    pytest.param([a_cloud(), a_service(cores=6)], ["lower cpu per replica from 6 to 4",
                  "define node class api-machine with 6 cpu and 1Gi memory on aws (price unknown)"],
                 id="no machine of a cloud has so many cores"),
    pytest.param([a_pool(labels={"compliance": ["gdpr"]}), a_service(gpu=1, compliance=["gdpr"])], ["do not request gpu (1 per replica)", NEW_GPU], id="no machine has a GPU"),
    pytest.param([a_pool(budget=100), a_service()], ["raise the budget of p1 by $44.00 a month to $144.00"], id="a budget is too small"),
    pytest.param([a_class(price=0.0208), a_pool(budget=20), a_service(cores=3, replicas=2)],
                 ["lower cpu per replica from 3 to 2", "run 1 replica instead of 2", "raise the budget of p1 by $9.952 a month to $29.952"],
                 id="a budget is too small for the second machine, to the micro-dollar"),
    pytest.param([a_class(price=None), a_pool(budget=100), a_service()],
                 ["declare costPerHour.aws of class m: its price is unknown, and the limit allows at most $0.138888/h"], id="a price is not known"),
    pytest.param([a_class(price=None), a_pool(budget=100), a_service(cores=3, replicas=2)],
                 ["declare costPerHour.aws of class m: its price is unknown, and the limit allows at most $0.069444/h"], id="a price is not known, and two machines are needed"),
    pytest.param([*FULL, a_service(cores=2)], ["lower cpu per replica from 2 to 1", "raise maxNodes of p1 by 1 to 2"], id="a pool is full"),
    pytest.param([a_pool(capacity={"maxCores": 7}), a_service(cores=4, replicas=3)],
                 ["lower cpu per replica from 4 to 1333m", "run 1 replica instead of 3", "raise maxCores of p1 by 5 to 12"],
                 id="too few cores for three machines"),
    pytest.param([a_cloud(regions={"r1": {"quotas": {"maxClusters": 0}}}), a_service()], ["raise maxClusters of cloud/r1 by 1 to 1"],
                 id="a quota allows no cluster"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi"), a_service(cores=3, replicas=3)],
                 ["lower cpu per replica from 3 to 1333m", "run 1 replica instead of 3", "add 2 machines like the existing 1 in dc"],
                 id="a data center is too small"),
    pytest.param([a_pool("p1"), a_pool("p2", region="p1-1"), a_policy(minRegions=2), a_service()],
                 ["require 1 region instead of 2 in policy rules"], id="there is one region only"),
    pytest.param([a_pool("p1"), a_static("dc"), DB, a_service(requiredRegions=["dc"], latency={"db": {"maxMs": 9}})],
                 ["declare latencyTo p1 in dc: it is unknown, and at most 9 ms fits", "do not limit the latency to db", "do not require a replica in dc"], id="the latency to a data center is unknown"),
    pytest.param([a_pool("p1"), a_pool("p2"), DB, a_service(requiredRegions=["p2"], latency={"db": {"maxMs": 9}})],
                 ["state the latency between p2 and p1 in the latency file: it is unknown, and at most 9 ms fits", "do not limit the latency to db", "do not require a replica in p2"], id="the latency between two pools is unknown"),
    pytest.param([a_pool("p1", region="us-east-1"), a_pool("p2", region="eu-west-1"), DB, a_service(requiredRegions=["p2"], latency={"db": {"maxMs": 5}})],
                 ["do not require a replica in p2", "allow 90 ms latency to db instead of 5 ms"], id="the dependency is far away"),
    pytest.param([a_pool(), a_service(requiredRegions=["moon"])], ["do not require a replica in moon"], id="no supply in the required region"),
    pytest.param([a_pool("p1", capacity={"maxNodes": 1}), a_pool("p2"), a_policy(spreadConstraint={"topologyKey": "pool"}), a_service(cores=3, replicas=4)],
                 ["lower cpu per replica from 3 to 2", "run 3 replicas instead of 4", "allow skew 2 over pool instead of 1 in policy rules",
                  "raise maxNodes of p1 by 1 to 2"], id="an even spread is not possible"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi", overflow={"enabled": True, "target": "cloud"}), a_cloud(), a_service(cores=3, replicas=2)],
                 ["lower cpu per replica from 3 to 2", "run 1 replica instead of 2", "add 1 machine like the existing 1 in dc",
                  "lower the overflow trigger of dc from 90 % to 75 % in use"], id="the trigger of overflow is not reached"),
    pytest.param([a_static(nodes=1, cores=4, memory="16Gi", overflow={"enabled": False}), a_cloud(), a_service("aaa", cores=4), a_service()],
                 ["add 1 machine like the existing 1 in dc", "enable overflow of dc to cloud"], id="overflow is not enabled"),
    pytest.param([a_class("g", gpu=1, **TAINTED), a_pool(classes=["g"]), a_service(gpu=1)], ["tolerate the taint gpu", NEW_GPU], id="a taint"),
    pytest.param([a_pool(), a_policy("a", clusters={"minNodes": 5}), a_policy("b", clusters={"maxNodes": 3}), a_service()],
                 ["allow clusters of 5 nodes instead of 3 in policy b", "start clusters with 3 nodes instead of 5 in policy a"],
                 id="policies contradict one another"),
    pytest.param([a_pool("p1"), a_pool("p2"), a_policy(minRegions=2), a_service(most=1)],
                 ["require 1 region instead of 2 in policy rules", "allow 2 replicas instead of 1"], id="a policy wants more than replicas.max"),
    pytest.param([a_class("s", 2, 4, 0.05), a_class(), a_cloud(budget={"monthly": 100, "hardLimit": True}), a_policy(clusters={"minNodes": 2}),
                  a_service("aaa"), a_service(cores=3, replicas=2)],
                 ["lower cpu per replica from 3 to 1", "raise the budget of cloud by $224.00 a month to $324.00"],
                 id="a machine that is not needed any more after the first replica came need not be paid for the second"),
    pytest.param([a_pool(), a_service()], [], id="what fits needs nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "sentences"), CASES)
def test_fit_suggestions(objects: list[Kind], sentences: list[str]) -> None:
    assert sorted(suggestion_texts(a_placed_world(*objects))) == sorted(sentences)


def test_missing_gdpr_label_of_us_east_ranks_first() -> None:
    world = converge(seed_world("soc2", "hipaa")).resulting_world()
    for name in ("default/api-gateway", "default/database"):
        assert suggestion_texts(world, name)[0] == "add compliance gdpr to us-east"
    first = fit(world, "default/api-gateway")[0]
    change = first.edits[0]
    assert (first.responsible, change.subject, change.path) == (
        ("platform",),
        "LatticePool/us-east",
        "spec.labels.compliance",
    )
    assert (change.old_value, change.new_value) == (["soc2", "hipaa"], ["soc2", "hipaa", "gdpr"])


def test_placeable_dependency_is_suggested_first() -> None:
    world = a_world(a_pool(), a_service("db"), a_service(latency={"db": {"maxMs": 5}}))
    found = fit(world, API)
    assert [each.sentence for each in found] == ["place db first"]


def test_suggestion_cost_is_the_rate_increase() -> None:
    world = a_placed_world(a_pool(budget=100), a_service())
    (found,) = fit(world, API)
    assert (found.rate_increase, found.monthly) == (200_000, 144_000_000)


TWO_LIMITS = [
    pytest.param([a_pool(capacity={"maxNodes": 1}, budget=200), a_service(cores=3, replicas=2)],
                 "raise maxNodes of p1 by 1 to 2; and raise the budget of p1 by $88.00 a month to $288.00", id="machines and money"),
    pytest.param([a_cloud(regions={"r1": {"quotas": {"maxClusters": 0}}}, budget={"monthly": 100, "hardLimit": True}), a_service(cores=3, replicas=2)],
                 "raise maxClusters of cloud/r1 by 1 to 1; and raise the budget of cloud by $188.00 a month to $288.00", id="a quota and money"),
    pytest.param([a_pool("p1", region="r1", capacity={"maxNodes": 0}), a_pool("p2", region="r2", capacity={"maxNodes": 0}),
                  a_service(cores=3, replicas=2), a_policy(minRegions=2)],
                 "raise maxNodes of p1 by 1 to 1; and raise maxNodes of p2 by 1 to 1", id="two pools"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "sentence"), TWO_LIMITS)
def test_platform_suggestion_covers_two_binding_limits(objects: list[Kind], sentence: str) -> None:
    world = a_placed_world(*objects)
    found = fit(world, API)
    for each in found:
        check(world, API, each)
    assert sentence in [each.sentence for each in found if each.is_platform_only]


def test_limited_list_includes_a_platform_suggestion() -> None:
    world = a_placed_world(a_pool(capacity={"maxNodes": 1}, budget=200), a_service(cores=3, replicas=2))
    assert len(fit(world, API)) > 2
    assert [each.is_platform_only for each in fit(world, API, limit=2)] == [False, True]


def test_suggestions_include_service_cost() -> None:
    """Two of three replicas are placed, for $0.40 an hour."""
    world = a_world(a_pool(capacity={"maxNodes": 2}), a_service(cores=3, replicas=3))
    told = answer_query({"ask": "fit", "service": API}, world)
    assert told["serviceCost"]["hourlyMicros"] == 400_000
    costs = {
        each["sentence"]: (each["serviceCost"]["hourlyMicros"], each["cost"]["hourlyMicros"])
        for each in told["suggestions"]
    }
    assert costs == {
        "run 2 replicas instead of 3": (400_000, 0), "lower cpu per replica from 3 to 2": (400_000, 0),
        "raise maxNodes of p1 by 1 to 3": (600_000, 200_000),
    }  # fmt: skip


def test_service_cost_is_its_share_of_shared_machines() -> None:
    world = a_world(a_pool(budget=0), a_service("aaa", cores=1), a_service(cores=1))
    (found,) = (
        each
        for each in answer_query({"ask": "fit", "service": API}, world)["suggestions"]
        if each["who"] == ["platform"]
    )
    assert (found["serviceCost"]["hourlyMicros"], found["cost"]["hourlyMicros"]) == (100_000, 200_000)


@pytest.mark.parametrize(("pools", "first"), [
    pytest.param([a_pool("p1", budget=0), a_pool("p2", budget=0), a_pool("p3", budget=143)],
                 "raise the budget of p3 by $1.00 a month to $144.00", id="a dollar is missing"),
    pytest.param([a_pool(f"p{each}", capacity={"maxCores": 0 if each < 3 else 3}) for each in (1, 2, 3)],
                 "raise maxCores of p3 by 1 to 4", id="a core is missing"),
    pytest.param([a_pool(f"p{each}", budget=0, capacity={"maxCores": 0 if each < 3 else 3}) for each in (1, 2, 3)],
                 "raise maxCores of p3 by 1 to 4; and raise the budget of p3 by $144.00 a month to $144.00", id="money everywhere, and a core"),
    pytest.param([a_class("m", 2, 4), a_class("n", 2.9, 4), a_pool("p1"), a_pool("p2"), a_pool("p3", classes=["n"])],
                 "lower cpu per replica from 3 to 2900m", id="a tenth of a core on one machine"),
])  # fmt: skip
def test_pool_with_smallest_shortfall_ranks_first(pools: list[Kind], first: str) -> None:
    assert (
        next(
            each
            for each in suggestion_texts(a_placed_world(*pools, a_service(cores=3)))
            if each[:5] == first[:5]
        )
        == first
    )


# --- other services wait too ---


BATCH, WEB = a_service("aaa", cores=3), a_service("batch", cores=3, replicas=2)
NO_ROOM = a_pool(capacity={"maxNodes": 0})
CROWDED = [
    pytest.param([NO_ROOM, WEB, a_service(cores=3)], [("raise maxNodes of p1 by 1 to 1", ())], id="a later service gets nothing"),
    pytest.param([NO_ROOM, BATCH, a_service(cores=3)], [("raise maxNodes of p1 by 2 to 2", ("default/aaa",))],
                 id="room for the one that comes first, too"),
    pytest.param([NO_ROOM, a_service("batch", cores=4, replicas=2, priority=1), BATCH, a_service(cores=3)],
                 [("raise maxNodes of p1 by 4 to 4", ("default/batch", "default/aaa"))], id="important ones come first"),
    pytest.param([a_pool(budget=100), BATCH, a_service(cores=3)], [("raise the budget of p1 by $188.00 a month to $288.00", ("default/aaa",))],
                 id="money for both"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_service("aaa", cores=3, compliance=["gdpr"]), a_service(cores=3, compliance=["gdpr"])],
                 [("do not require compliance gdpr", ()), ("add compliance gdpr to p1", ("default/aaa",))],
                 id="another takes the only machine once the compliance standard is there"),
    pytest.param([a_pool(capacity={"maxNodes": 1}), a_service("aaa", cores=3, compliance=["gdpr"]), a_policy(selector={"env": "prod"}, compliance=["gdpr"]),
                  a_service(cores=3, labels={"env": "prod"})],
                 [("do not require compliance gdpr in policy rules", ()), ("add compliance gdpr to p1", ("default/aaa",))],
                 id="a rule of the platform is given up for the service only"),
    pytest.param([a_class("s", 2, 4, 0.05), a_class(), a_cloud(budget={"monthly": 100, "hardLimit": True}), a_policy(clusters={"minNodes": 3}),
                  a_service("batch"), a_service(cores=3)],
                 [("raise the budget of cloud by $152.00 a month to $252.00", ())], id="a cluster that another begins needs only one more machine"),
]  # fmt: skip


@pytest.mark.parametrize(("objects", "expected"), CROWDED)
def test_services_ahead_are_accounted_for(
    objects: list[Kind], expected: list[tuple[str, tuple[str, ...]]]
) -> None:
    world = a_placed_world(*objects)
    found = fit(world, API)
    for each in found:
        check(world, API, each)
    assert [
        (each.sentence, each.services_ahead) for each in found if not each.sentence.startswith("lower")
    ] == expected


def test_insufficient_suggestion_names_services_ahead() -> None:
    world = a_placed_world(
        a_pool(capacity={"maxNodes": 1}),
        a_policy(compliance=["gdpr"]),
        a_service("aaa", cores=3),
        a_service(cores=3),
    )
    found = fit(world, API)
    for each in found:
        check(world, API, each)
    assert ("add compliance gdpr to p1; and raise maxNodes of p1 by 1 to 2", ("default/aaa",)) in [
        (each.sentence, each.services_ahead) for each in found
    ]
    assert [(each.sentence, each.services_ahead) for each in found if not each.is_enough] == [
        ("add compliance gdpr to p1", ("default/aaa",)), ("do not require compliance gdpr in policy rules", ("default/aaa",)),
    ]  # fmt: skip


ONE = {"maxNodes": 1}
AAA, AAB = a_service("aaa", cores=3), a_service("aab", cores=3)


@pytest.mark.parametrize(("objects", "sentence", "ahead"), [
    pytest.param([a_pool(budget=0, capacity=ONE), AAA, AAB, a_service(cores=3)], "raise the budget of p1 by $144.00 a month to $144.00",
                 ["aaa", "aab"], id="the second would come once the first is gone"),
    pytest.param([a_pool(capacity=ONE), a_policy(compliance=["gdpr"]), AAA, AAB, a_service(cores=3)],
                 "do not require compliance gdpr in policy rules", ["aaa", "aab"], id="services under the changed policy are included"),
    pytest.param([a_pool(capacity=ONE), a_policy(compliance=["gdpr"]), a_service("zzz", cores=3), a_service("vip", priority=9, latency={"zzz": {"maxMs": 5}}),
                  a_service(cores=3)],
                 "do not require compliance gdpr in policy rules", ["zzz", "vip"], id="an important one brings those along that it has to be near"),
])  # fmt: skip
def test_all_services_ahead_are_named(objects: list[Kind], sentence: str, ahead: list[str]) -> None:
    world = a_placed_world(*objects)
    found = {each.sentence: each for each in fit(world, API) if not each.is_enough}[sentence]
    assert found.services_ahead == tuple(f"default/{each}" for each in ahead)
    check(world, API, found)


def test_fit_document_marks_insufficient_suggestions() -> None:
    world = a_world(
        a_pool(capacity={"maxNodes": 1}),
        a_policy(compliance=["gdpr"]),
        a_service("aaa", cores=3, priority=1),
        a_service(cores=3),
    )
    told = answer_query({"ask": "fit", "service": API}, world)["suggestions"]
    assert {tuple(each["ahead"]) for each in told} == {("default/aaa",)}
    assert {each["sentence"]: each["isEnough"] for each in told}["add compliance gdpr to p1"] is False
    assert {each["sentence"]: each["isEnough"] for each in told}[
        "add compliance gdpr to p1; and raise maxNodes of p1 by 1 to 2"
    ] is True


@SOME
@given(worlds())
def test_every_suggestion_places_the_service_when_applied(world: World) -> None:
    before = converge(world)
    applied = before.resulting_world()
    for name, placement in before.unplaced.items():
        found, verdict = fit(applied, name), judge(placement, before.fleet, world.services)
        least = min(map(len, verdict.blocker_sets), default=0)
        assert found or not 1 <= least <= MAX_EDITS, f"{name}: {verdict.reason}"
        for each in found:
            note(f"{name}: {each.sentence} {each.services_ahead} {each.is_enough}")
            check(applied, name, each)


JOIN = "join a machine with at least {} to p1 (`lattice tokens create --pool p1`)"


@pytest.mark.parametrize(
    ("service", "size"),
    [
        pytest.param(
            a_service(replicas=3, cores=2, memory=1),
            "4 cpu and 2Gi memory",
            id="a machine for all replicas without a place",
        ),
        pytest.param(a_service(replicas=1, cores=8, memory=1), "8 cpu and 1Gi memory", id="a larger machine"),
        pytest.param(
            a_service(replicas=1, cores=1, memory=1, gpu=1, gpuModel="nvidia-t4"),
            "1 cpu and 1 nvidia-t4 gpu and 1Gi memory",
            id="a machine with a GPU",
        ),
    ],
)
def test_full_pool_of_joined_machines(service: LatticeService, size: str) -> None:
    world = a_manual_world(a_pool(provider="metal", classes=[]), a_joined_machine(cores=2), service)
    rates = {suggestion.sentence: suggestion.rate_increase for suggestion in fit(world, "default/api")}
    assert rates[JOIN.format(size)] == 0
