"""Output and exit codes of `why`, `fit`, `whatif`, `cost` and `optimise` on the example worlds."""

import json
from pathlib import Path

import pytest
from build.cli_output import squeezed_lines
from build.example_worlds import SEED_000, SEED_001

API = "lattice.dev/v1alpha1"
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def answered(lattice, *arguments):
    ran = lattice(*arguments, "-o", "json")
    return json.loads(ran.out)


def test_why_shows_scores_by_part_and_every_rejection(lattice):
    ran = lattice("why", "service/api-gateway", "--world", SEED_000)
    assert ran.code == 0, ran.err
    lines = squeezed_lines(ran.out)
    assert "Placed in us-east and eu-west per requiredRegions constraint" in ran.out
    assert any(line.startswith("3 anywhere us-east * ") for line in lines)
    assert "ap-south Compliance compliance gdpr soc2 gdpr" in lines
    assert "TIER ×256" in ran.out
    assert "estimated over" in ran.out


def test_why_names_the_runner_up_and_the_deciding_score(lattice):
    last = answered(lattice, "why", "api-gateway", "--world", SEED_000)["decisions"][-1]
    assert (last["chosen"], last["runnerUp"], last["deciding"]) == ("us-east", "eu-west", "AvailableCapacity")
    assert all(0 <= part["score"] <= 100 for each in last["ranked"] for part in each["parts"])


def test_why_gives_every_unfit_pool_a_reason(lattice, without_gdpr):
    for world, names in (
        (SEED_000, ["api-gateway", "cache"]),
        (without_gdpr, ["api-gateway"]),
        (SEED_001, ["trainer", "ledger"]),
    ):
        for name in names:
            pools = answered(lattice, "why", name, "--world", world)["pools"]
            assert all(each["fits"] or each["reasons"] for each in pools)


def test_why_with_pool_shows_only_that_pool(lattice):
    ran = lattice("why", "service/api-gateway", "--pool", "ap-south", "--world", SEED_000)
    assert "ap-south" in ran.out
    assert "AVAILABLECAPACITY" not in ran.out
    fits = lattice("why", "service/api-gateway", "--pool", "eu-west", "--world", SEED_000)
    assert "no filter rejects eu-west" in fits.out


def test_why_unplaced_shows_verdict_conflicts_and_needs(lattice, without_gdpr):
    ran = lattice("why", "service/api-gateway", "--world", without_gdpr)
    assert "default/api-gateway: Never." in ran.out
    assert "us-east Compliance compliance gdpr hipaa, soc2 gdpr" in squeezed_lines(ran.out)
    assert "fits without" in ran.out
    assert "would fit in" in ran.out


def test_fit_names_the_missing_label_of_us_east_first(lattice, without_gdpr):
    ran = lattice("fit", "service/api-gateway", "--world", without_gdpr)
    assert ran.code == 0
    assert (
        next(line for line in squeezed_lines(ran.out) if line.startswith("1 "))
        == "1 platform $0.576 $414.72 +$1.536 add compliance gdpr to us-east"
    )
    document = answered(lattice, "fit", "service/api-gateway", "--world", without_gdpr)
    first = document["suggestions"][0]["changes"][0]
    assert (first["who"], first["object"]) == ("platform", {"kind": "LatticePool", "name": "us-east"})
    assert first["after"] == ["soc2", "hipaa", "gdpr"]


def test_fit_of_a_placed_service_says_it_fits(lattice):
    assert lattice("fit", "cache", "--world", SEED_000).out == "default/cache fits without changes\n"


def test_whatif_shows_moves_and_the_new_cost(lattice):
    ran = lattice("whatif", "--lose-pool", "dc-east", "--world", SEED_001)
    assert ran.code == 1, ran.err
    lines = squeezed_lines(ran.out)
    assert "~ default/imaging dc-east 4 → aws-production/us-east-1 4 +$0.768 +$552.96" in lines
    assert "without dc-east: " in ran.out
    assert "$12.88/h → $13.648/h" in ran.out
    document = answered(lattice, "whatif", "--lose-pool", "dc-east", "--world", SEED_001)
    assert not any(place["pool"] == "dc-east" for each in document["services"] for place in each["after"])


def test_whatif_with_unplaced_services_exits_with_2(lattice):
    ran = lattice("whatif", "--drop-compliance", "us-east:GDPR", "--world", SEED_000)
    assert ran.code == 2
    assert "3 services partly placed" in ran.out
    assert "not moved automatically" not in ran.out


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["whatif", "--lose-pool", "us-east"], id="a pool that is lost"),
        pytest.param(
            ["whatif", "--drop-compliance", "us-east:gdpr", "--price", "+20%"],
            id="dropped compliance, and dearer",
        ),
    ],
)
def test_whatif_suggests_fit_for_the_same_world(lattice, flags):
    ran = lattice(*flags, "--world", SEED_000)
    hint = next(line for line in ran.out.splitlines() if line.startswith("`lattice fit "))
    told = lattice(*hint.split("`")[1].split()[1:])
    assert told.code == 0, told.err
    assert "fits without changes" not in told.out
    assert told.out.startswith("default/api-gateway: N")
    assert any(line.startswith("1 ") for line in squeezed_lines(told.out))
    assert (
        lattice("fit", "service/api-gateway", "--world", SEED_000).out
        == "default/api-gateway fits without changes\n"
    )


def test_fit_under_a_hypothesis_names_it(lattice):
    ran = lattice("fit", "cache", "--lose-pool", "ap-south", "--world", SEED_000)
    assert ran.out == "default/cache also fits without ap-south\n"


def test_repeated_whatif_flags_count_once(lattice):
    twice = [
        "--lose-pool",
        "ap-south",
        "--lose-pool",
        "ap-south",
        "--drop-compliance",
        "us-east:gdpr",
        "--drop-compliance",
        "us-east:GDPR",
    ]
    ran = lattice("whatif", *twice, "--world", SEED_000)
    assert ran.code == 2, ran.err
    assert ran.out.startswith("without ap-south, without compliance GDPR in us-east: ")


def test_cost_of_one_namespace_sums_its_services(lattice, running, tmp_path):
    other = json.loads(Path(running).read_text())
    for each in other["items"]:
        if each["kind"] == "LatticeService":
            each["metadata"]["namespace"] = {"a": "default", "b": "shop"}[each["metadata"]["name"]]
    (tmp_path / "shop.json").write_text(json.dumps(other))
    both = answered(lattice, "cost", "--by", "service", "--world", "shop.json")
    assert [each["name"] for each in both["rows"]] == ["default/a", "shop/b"]
    for by in ("service", "pool", "label:team"):
        one = answered(lattice, "cost", "--by", by, "-n", "shop", "--world", "shop.json")
        assert (one["namespace"], one["total"]["hourly"], len(one["rows"])) == ("shop", "0.384", 1)
    nobody = lattice("cost", "-n", "empty", "--world", "shop.json")
    assert (nobody.code, nobody.out) == (3, "")
    assert nobody.err == "error: there is no namespace empty\n  fix: use one of: default, shop\n"


def test_whatif_combines_prices_scale_and_losses(lattice):
    document = answered(lattice, "whatif", "--price", "+20%", "--world", SEED_000)
    before, after = (document["total"][when]["hourlyMicros"] for when in ("before", "after"))
    assert after * 10 == before * 12
    both = answered(
        lattice,
        "whatif",
        "--lose-pool",
        "ap-south",
        "--price",
        "+20%",
        "--price",
        "-50%",
        "--world",
        SEED_000,
    )
    assert both["event"] == {"lose": ["ap-south"], "drop": [], "priceMillionths": 600_000}


@pytest.mark.parametrize("by", ["pool", "service", "label:env", "label:nothing"])
@pytest.mark.parametrize("world", [SEED_000, SEED_001], ids=["seed 000", "seed 001"])
def test_costs_add_up_exactly_by_every_grouping(lattice, world, by):
    document = answered(lattice, "cost", "--by", by, "--world", world)
    assert sum(each["hourlyMicros"] for each in document["rows"]) == document["total"]["hourlyMicros"]
    assert document["total"]["projected30DayMicros"] == 720 * document["total"]["hourlyMicros"]


def test_cost_shows_its_arithmetic_and_empty_nodes(lattice):
    lines = squeezed_lines(lattice("cost", "--by", "service", "--world", SEED_000).out)
    assert "default/api-gateway $0.576 $414.72 37.5 %" in lines
    assert "(empty nodes in eu-west) $0.384 $276.48 25.0 %" in lines
    by_team = squeezed_lines(lattice("cost", "--by", "label:env", "--world", SEED_000).out)
    assert "production $0.576 $414.72 37.5 %" in by_team


def test_optimise_reports_the_optimality_gap(lattice):
    ran = lattice("optimise", "--world", SEED_001, "--time-limit", "5s")
    assert ran.code == 0, ran.err
    assert "no move would pay for itself: $12.88/h" in ran.out
    assert "no placement costs less than $12.88/h: the gap is at most 0.00 %" in ran.out


def a_pool_manifest(name, provider):
    spec = {
        "provider": {"type": provider, "region": f"r-{name}"},
        "capacity": {"maxNodes": 100},
        "nodeClasses": ["medium"],
    }
    return {"apiVersion": API, "kind": "LatticePool", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def running(tmp_path):
    """Two services of two replicas each, running in the one pool that there was."""
    sizes = {
        "providers": {"aws": {}, "gcp": {}},
        "resources": {"cores": 4, "memoryGi": 16},
        "costPerHour": {"aws": 0.192, "gcp": 0.1},
    }
    objects = [
        {"apiVersion": API, "kind": "LatticeNodeClass", "metadata": {"name": "medium"}, "spec": sizes},
        a_pool_manifest("dear", "aws"),
    ]
    cluster = {"pool": "dear", "nodes": {"medium": 4}, "minNodes": 1, "maxNodes": 20}
    objects.append(
        {"apiVersion": API, "kind": "LatticeCluster", "metadata": {"name": "dear-001"}, "spec": cluster}
    )
    for name in ("a", "b"):
        needs = {"resources": {"cores": 3, "memoryGi": 2}}
        spec = {"containers": {"main": {"image": "a:1"}}, "placement": needs, "replicas": {"min": 2}}
        status = {"placements": [{"pool": "dear", "cluster": "dear-001", "replicas": 2, "node": "medium"}]}
        objects.append(
            {
                "apiVersion": API,
                "kind": "LatticeService",
                "metadata": {"name": name},
                "spec": spec,
                "status": status,
            }
        )
    (tmp_path / "running.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    (tmp_path / "cheap.json").write_text(json.dumps(a_pool_manifest("cheap", "gcp")))
    return "running.json"


def test_running_service_stays_when_a_cheaper_pool_appears(lattice, running):
    assert lattice("plan", "--world", running).code == 0
    ran = lattice("plan", "--world", running, "-f", "cheap.json")
    assert (ran.code, ran.out.splitlines()[0]) == (
        1,
        "1 declaration changed, no placement changes; $0.768/h, unchanged",
    )
    why = lattice("why", "a", "--world", running, "-f", "cheap.json").out
    assert "default/a: Placed. Placed in dear" in why
    assert "! a new placement would choose cheap 2" in why


def test_optimise_lists_moves_that_save_money(lattice, running):
    ran = lattice("optimise", "--world", running, "-f", "cheap.json")
    assert ran.code == 1, ran.err
    assert "4 moves would save $264.96 in 30 days" in ran.out
    assert "~ default/a dear 2 → cheap 2 -$0.184 -$132.48" in squeezed_lines(ran.out)
    assert "- dear-001 dear 4 × medium -$0.768" in squeezed_lines(ran.out)
    few = answered(lattice, "optimise", "--world", running, "-f", "cheap.json", "--max-moves", "2")
    assert few["moves"] == 2
    dear_moves = lattice("optimise", "--world", running, "-f", "cheap.json", "--move-cost", "1000")
    assert (dear_moves.code, dear_moves.out.splitlines()[0]) == (0, "no move would pay for itself: $0.768/h")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["why"], "Missing argument", id="why of nothing"),
        pytest.param(["why", "pool/us-east"], "is not a service", id="why of a pool"),
        pytest.param(
            ["why", "service/api"],
            "did you mean default/api-gateway?",
            id="why of a service that is not there",
        ),
        pytest.param(
            ["why", "api-gateway", "--pool", "us-est"],
            "did you mean us-east?",
            id="why not in a pool that is not there",
        ),
        pytest.param(["fit", "service/"], "no service is named", id="fit of nothing"),
        pytest.param(["whatif"], "no event is given", id="what if nothing"),
        pytest.param(["whatif", "--price", "20"], "is not a price change", id="a price that is no change"),
        pytest.param(["whatif", "--price", "-200%"], "prices can change by", id="a price below nothing"),
        pytest.param(
            ["whatif", "--lose-pool", "nope"],
            "no pool, region or infrastructure nope",
            id="losing what is not there",
        ),
        pytest.param(
            ["whatif", "--drop-compliance", "us-east"],
            "is not POOL:COMPLIANCE",
            id="a pool without a compliance standard",
        ),
        pytest.param(
            ["whatif", "--drop-compliance", "us-east:pci"],
            "us-east does not have compliance pci",
            id="a compliance standard that the pool does not have",
        ),
        pytest.param(
            ["cost", "--by", "team"], "is not pool, service, node or label:KEY", id="cost by anything"
        ),
        pytest.param(["optimise", "--payback", "5s"], "--payback must be 1h or more", id="a payback at once"),
        pytest.param(
            ["optimise", "--move-cost", "x"],
            "must be an amount in dollars",
            id="a move cost that is no number",
        ),
    ],
)
def test_query_errors_exit_with_3_or_more(lattice, arguments, told):
    ran = lattice(*arguments, "--world", SEED_000)
    assert ran.code >= 3
    assert told in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("command", ["plan", "why", "fit", "whatif", "cost", "optimise"])
def test_help_has_examples(lattice, command):
    ran = lattice(command, "--help")
    assert ran.code == 0
    assert "Examples:" in ran.out
    assert "--world" in ran.out


def test_every_pool_can_be_lost_in_turn(lattice):
    ran = lattice("whatif", "--lose-each-pool", "--world", SEED_000)
    assert ran.code == 2
    assert (
        "! us-east 0 $0.768 -$0.768 default/api-gateway, default/cache, default/database"
        in squeezed_lines(ran.out)
    )
    assert "1 other pool could be lost without moving a replica" in ran.out
    for pool in ("us-east", "eu-west", "ap-south"):
        alone = answered(lattice, "whatif", "--lose-pool", pool, "--world", SEED_000)
        together = answered(lattice, "whatif", "--lose-each-pool", "--world", SEED_000)
        loss = next(each for each in together["losses"] if each["pool"] == pool)
        assert loss["leftWithout"] == [each["name"] for each in alone["unplaced"]]
        assert loss["cost"] == {when: alone["total"][when] for when in ("before", "after", "change")}


def test_busy_server_is_not_retried_past_the_timeout(server, lattice):
    busy = (
        429,
        [("Retry-After", "1")],
        {"reason": "TooManyRequests", "message": "others are being answered"},
    )
    server.answers["POST", "/apis/lattice.dev/v1alpha1/fleet/cost"] = [busy] * 6
    ran = lattice("cost", "--request-timeout", "500ms")
    assert ran.code >= 3
    assert "others are being answered" in ran.err
    assert len(server.log) == 1


@pytest.mark.parametrize("command", ["plan", "why", "fit", "whatif", "cost", "optimise"])
def test_help_shows_the_request_timeout(lattice, command):
    (line,) = [
        line
        for line in " ".join(lattice(command, "--help").out.split()).split(" --")
        if line.startswith("request-timeout")
    ]
    assert "default: 5m" in line
