"""Tests of query documents: plain JSON, exact money, and the same text from every renderer."""

import json
from pathlib import Path

import msgspec
import pytest
from build.worlds import a_class, a_cloud, a_pool, a_service, a_static
from hypothesis import given
from hypothesis import strategies as st

from lattice.cli.client.manifests import read_manifests
from lattice.cli.fleet.offline_world import admit_object
from lattice.cli.output.cost_tables import cost_lines
from lattice.cli.output.plan_tables import optimise_lines, plan_lines, whatif_lines
from lattice.cli.output.service_tables import fit_lines, why_lines
from lattice.cli.output.table_renderer import TableRenderer
from lattice.errors import Malformed, NotFound
from lattice.kinds.meta.quantity import format_dollars
from lattice.kinds.service import LatticeService
from lattice.placement.feed.placement_input import KINDS_BY_NAME
from lattice.placement.model.world import World
from lattice.placement.plan.plan import converge
from lattice.placement.queries.dispatch import QUERY_HANDLERS, answer_query
from lattice.placement.queries.plan_document import money_document, rate_document
from lattice.placement.queries.why import ranges

WORLDS = Path(__file__).parents[3] / "examples" / "worlds"
API = "default/api-gateway"


def objects(name):
    return [
        admit_object(KINDS_BY_NAME[target.resource.kind], document.value)
        for document, target in read_manifests([str(WORLDS / name)])
    ]


@pytest.fixture(scope="module")
def seed():
    found = {name: objects(name) for name in ("seed-000", "seed-001")}
    return {**found, "printed": [_as_printed(each) for each in found["seed-000"]]}


def _as_printed(each):
    """us-east without gdpr, so that no service is placed."""
    if each.metadata.name != "us-east":
        return each
    return msgspec.structs.replace(
        each,
        spec=msgspec.structs.replace(each.spec, labels={**each.spec.labels, "compliance": ["soc2", "hipaa"]}),
    )


QUESTIONS = [
    pytest.param({"ask": "plan"}, plan_lines, id="plan"),
    pytest.param({"ask": "why", "service": API}, why_lines, id="why"),
    pytest.param({"ask": "why", "service": API, "pool": "ap-south"}, why_lines, id="why of a pool"),
    pytest.param({"ask": "fit", "service": API}, fit_lines, id="fit"),
    pytest.param(
        {"ask": "whatif", "lose": ["us-east"], "drop": [["eu-west", "gdpr"]], "priceMillionths": 900_000},
        whatif_lines,
        id="whatif",
    ),
    pytest.param({"ask": "cost", "by": "label:env"}, cost_lines, id="cost"),
    pytest.param({"ask": "optimise", "maxMoves": 3, "timeLimitSeconds": 2.0}, optimise_lines, id="optimise"),
]


@pytest.mark.parametrize("world", ["seed-000", "printed"])
@pytest.mark.parametrize(("question", "draw"), QUESTIONS)
def test_document_round_trips_json_and_renders_the_same(seed, question, draw, world):
    """The document is plain JSON and independent of object order, as a server would send it."""
    document = answer_query(question, World.of(seed[world]))
    again = answer_query(question, World.of(reversed(seed[world])))
    sent = json.loads(msgspec.json.encode(document))
    assert sent == json.loads(msgspec.json.encode(again))
    for look in (TableRenderer(), TableRenderer(wide=True), TableRenderer(max_width=60)):
        assert draw(sent, look) == draw(document, look)
    assert all(not line.endswith(" ") and line.isprintable() for line in draw(sent, TableRenderer(wide=True)))


@pytest.mark.parametrize(("question", "draw"), QUESTIONS)
def test_every_key_is_camel_case(seed, question, draw):
    def keys(value):
        if isinstance(value, dict):
            yield from value
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            yield from keys(each)

    named = [key for key in keys(answer_query(question, World.of(seed["seed-000"]))) if "_" in key]
    assert named == []


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_money_is_exact_in_every_format(micros):
    written = money_document(micros)["dollars"]
    whole, _, part = written.removeprefix("-").partition(".")
    assert int(whole) * 1_000_000 + int(part.ljust(6, "0") or 0) == abs(micros)
    assert rate_document(micros)["projected30DayMicros"] == 720 * micros
    shown = format_dollars(micros).replace("$", "").replace(",", "")
    whole, _, part = shown.removeprefix("-").partition(".")
    assert int(whole) * 1_000_000 + int(part.ljust(6, "0")) == abs(micros)
    assert shown.startswith("-") == (micros < 0)


def test_plan_without_changes_lists_pending_work(seed):
    world = World.of(seed["seed-000"])
    assert len(answer_query({"ask": "plan"}, world)["services"]) == 3
    assert answer_query({"ask": "plan"}, converge(world).resulting_world())["isEmpty"]


def test_queries_apply_given_changes(seed):
    world = World.of(seed["seed-000"])
    pool = next(each for each in seed["seed-000"] if each.metadata.name == "us-east")
    gone = [("LatticePool", "", "us-east")]
    assert answer_query({"ask": "why", "service": API}, world, deleted=gone)["verdict"] == "NotHere"
    assert (
        answer_query({"ask": "why", "service": API}, world.with_objects([], gone), [pool])["verdict"]
        == "Placed"
    )


def test_why_does_not_change_the_fleet(seed):
    """A running service is shown where it is, decided again, and nothing moves."""
    world = converge(World.of(seed["seed-000"])).resulting_world()
    document = answer_query({"ask": "why", "service": API}, world)
    assert {each["pool"]: each["replicas"] for each in document["now"]} == {"us-east": 2, "eu-west": 1}
    assert document["isStale"] is False
    assert answer_query({"ask": "plan"}, world)["isEmpty"]


def test_service_with_better_placement_is_stale(seed):
    world = converge(World.of(seed["seed-001"])).resulting_world()
    storefront = next(
        each
        for each in seed["seed-001"]
        if isinstance(each, LatticeService) and each.metadata.name == "storefront"
    )
    here = {
        each["pool"] for each in answer_query({"ask": "why", "service": "default/storefront"}, world)["now"]
    }
    other = "aws-production/us-east-1"
    assert other not in here
    placement = msgspec.structs.replace(storefront.spec.placement, required_regions=(other,))
    moved = msgspec.structs.replace(
        storefront, spec=msgspec.structs.replace(storefront.spec, placement=placement)
    )
    planned = answer_query({"ask": "plan"}, world, [moved])
    assert [each["name"] for each in planned["wouldMove"]] == ["default/storefront"]
    document = answer_query({"ask": "why", "service": "default/storefront"}, world, [moved])
    assert document["isStale"] is True
    assert {each["pool"] for each in document["now"]} == here
    assert other in {each["pool"] for each in document["would"]}


def _grounds(document, pool):
    found = next(each for each in document["pools"] if each["name"] == pool)
    return [(each["replicas"], each["filter"], each["need"], each["have"]) for each in found["reasons"]]


def test_overflow_reasons_name_their_replicas():
    """Four replicas fill the data center, two overflow into the only allowed cluster, the seventh is
    unplaced."""
    rule = {
        "enabled": True,
        "target": "aws",
        "trigger": {"capacityThreshold": 50},
        "limits": {"maxClusters": 1},
    }
    clouds = [a_cloud("aws", defaults={"maxNodesPerCluster": 2}), a_cloud("gcp", provider="gcp")]
    world = World.of([a_class(), a_static(nodes=4, overflow=rule), *clouds, a_service(cores=3, replicas=8)])
    document = answer_query({"ask": "why", "service": "default/api"}, world)
    assert (document["isPlaced"], document["placed"], document["replicas"]) == (False, 6, 8)
    assert _grounds(document, "aws/r1") == [
        ("1-3", "Overflow", "50 %", "37.5 % in use"),
        ("4", "Overflow", "no free capacity in data centers", "free capacity in one of them"),
        ("7", "Capacity", "1 more", "1 of maxClusters 1"),
    ]
    assert _grounds(document, "gcp/r1") == [
        ("1-3", "Overflow", "50 %", "37.5 % in use"),
        ("4-7", "Overflow", "target aws", "gcp"),
    ]
    assert _grounds(document, "dc") == [("5-7", "Capacity", "1 more", "0 of 4")]
    heads = next(line for line in why_lines(document, TableRenderer()) if line.startswith("POOL"))
    assert heads.split()[:3] == ["POOL", "REPLICA", "FILTER"]


@pytest.mark.parametrize(
    ("nodes", "wanted", "told"),
    [
        pytest.param({}, {}, [], id="nothing"),
        pytest.param(
            {"taints": [{"key": "dedicated", "value": "db", "effect": "NoSchedule"}]}, {"tolerations": [{"key": "dedicated", "value": "web"}]},
            [("taint of class m", "toleration of dedicated=db:NoSchedule", "dedicated=web")], id="another taint than is tolerated",
        ),
        pytest.param(
            {"gpu": 1, "gpu_model": "t4"}, {"gpu": 1, "gpuModel": "a100"}, [("gpu model", "a100", "t4")], id="another model",
        ),
        pytest.param(
            {"labels": {"disk": "hdd"}}, {"nodeSelector": {"disk": "ssd"}}, [("label of class m", "disk=ssd", "disk=hdd")], id="another label",
        ),
        pytest.param(
            {"gpu": 1, "gpu_model": "t4", "taints": [{"key": "gpu", "effect": "NoExecute"}]}, {"gpu": 1, "gpuModel": "a100"},
            [("gpu model", "a100", "t4"), ("taint of class m", "toleration of gpu:NoExecute", "no toleration")], id="both",
        ),
    ],
)  # fmt: skip
def test_why_names_taint_label_and_model_mismatches(nodes, wanted, told):
    document = answer_query(
        {"ask": "why", "service": "default/api"}, World.of([a_class(**nodes), a_pool(), a_service(**wanted)])
    )
    found = [(each["what"], each["need"], each["have"]) for each in document["pools"][0]["reasons"]]
    assert found == told


def test_why_lists_gpu_models_of_data_center():
    have = [{"type": "t4", "count": 1}, {"type": "l4", "count": 1}]
    world = World.of([a_static(accelerators=have), a_service(gpu=1, gpuModel="a100")])
    (reason,) = answer_query({"ask": "why", "service": "default/api"}, world)["pools"][0]["reasons"]
    assert (reason["what"], reason["need"], reason["have"]) == ("gpu model", "a100", "l4, t4")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([1], "1"), ([1, 2, 3], "1-3"), ([1, 2, 5, 7, 8], "1-2, 5, 7-8"), ([], "")],
    ids=["one", "a run", "gaps", "none"],
)
def test_ranges(numbers, text):
    assert ranges(numbers) == text


def test_all_unplaced_services_are_listed(seed):
    """Services with equal demands are judged once, and each is listed by name."""
    cache = next(each for each in seed["seed-000"] if each.metadata.name == "cache")
    many = [
        msgspec.structs.replace(cache, metadata=msgspec.structs.replace(cache.metadata, name=f"s{n:03}"))
        for n in range(60)
    ]
    document = answer_query(
        {"ask": "plan"}, World.of(seed["seed-000"]).with_objects([], [("LatticePool", "", "us-east")]), many
    )
    assert len(document["unplaced"]) == 63
    assert {each["verdict"] for each in document["unplaced"]} == {"NotHere"}
    for each in document["unplaced"]:
        sources = {part["source"] for parts in each["conflicts"] for part in parts}
        assert {source for source in sources if source.startswith("service/")} == {
            f"service/{each['name'].removeprefix('default/')}"
        }
    assert all(each["required"] for each in document["unplaced"])
    assert all("not in us-east" in each["reason"] for each in document["unplaced"])


def test_unknown_query_or_service_is_rejected(seed):
    with pytest.raises(Malformed, match="unknown query 'when'"):
        answer_query({"ask": "when"}, World.of(()))
    for ask in ("why", "fit"):
        assert ask in QUERY_HANDLERS
        with pytest.raises(NotFound, match="there is no service default/nobody"):
            answer_query({"ask": ask, "service": "default/nobody"}, World.of(seed["seed-000"]))
