"""`lattice plan` and `apply --plan`: changes of placement and cost, and exit codes."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from build.cli_output import squeezed_lines
from build.example_worlds import SEED_000, SEED_001
from build.manifests import manifest, write
from build.servers import running_server

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("no_server")]


def a_planned_service(name="web", cores=1, replicas=1, **placement):
    wanted = {"resources": {"cores": cores, "memoryGi": 1}, **placement}
    containers = {"main": {"image": "web:1"}}
    return manifest(
        "LatticeService",
        name,
        {"containers": containers, "placement": wanted, "replicas": {"min": replicas, "max": replicas}},
    )


def test_plan_from_an_empty_fleet_places_everything(lattice):
    ran = lattice("plan", "--world", SEED_000)
    assert ran.code == 1, ran.err
    lines = squeezed_lines(ran.out)
    assert "+ default/api-gateway us-east 2, eu-west 1 +$0.576 +$414.72" in lines
    assert "+ us-east-002 us-east 3 × medium +$0.576" in lines
    assert "total $0.00 $1.536 +$1.536 +$1,105.92" in lines
    assert "latticepool/us-east $10,000.00 0 % → 5 % 80 % hard $13.1209" in lines
    assert "prices: costPerHour of node classes" in ran.out
    assert ran.err == ""


def test_service_costs_and_overhead_sum_to_the_total(lattice):
    for world in (SEED_000, SEED_001):
        document = json.loads(lattice("plan", "--world", world, "-o", "json").out)
        parts = [each["cost"]["after"]["hourlyMicros"] for each in document["services"]]
        assert (
            sum(parts) + document["overhead"]["after"]["hourlyMicros"]
            == document["total"]["after"]["hourlyMicros"]
        )
        assert (
            sum(each["after"]["hourlyMicros"] for each in document["pools"])
            == document["total"]["after"]["hourlyMicros"]
        )


def test_static_pool_is_preferred_and_capability_filters(lattice):
    document = json.loads(lattice("plan", "--world", SEED_001, "-o", "json").out)
    where = {each["name"]: {place["pool"] for place in each["after"]} for each in document["services"]}
    assert where.pop("default/storefront") <= {"dc-east", "dc-west", "dc-eu"}
    assert where == {
        "default/imaging": {"dc-east"},
        "default/ledger": {"dc-eu"},
        "default/trainer": {"gcp-ml/us-central1"},
    }


def test_api_gateway_without_gdpr_in_us_east_is_infeasible(lattice, without_gdpr):
    ran = lattice("plan", "--world", without_gdpr)
    assert ran.code == 2
    assert (
        "default/api-gateway   0 of 3   Never     0 of 3 pools: 2 without compliance gdpr; 1 not in us-east"
        in ran.out
    )
    assert "would fit in" in ran.out
    assert "region us-east; compliance gdpr, soc2" in ran.out
    assert f"`lattice fit service/api-gateway --world {without_gdpr}` lists the smallest changes" in ran.out


def test_plan_of_a_pool_lists_every_affected_service(lattice, without_gdpr):
    ran = lattice("plan", "--world", SEED_000, "-f", f"{without_gdpr}/pools.yaml")
    assert ran.code == 2, "they would have to move, and have nowhere to go"
    assert "3 services without another pool; $1.536/h, unchanged" in ran.out
    for name in ("api-gateway", "cache", "database"):
        assert f"default/{name}" in ran.out
    assert "us-east: compliance: need gdpr, have hipaa, soc2" in ran.out
    assert "Running replicas are not moved" in ran.out


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        pytest.param([], 0, "nothing changes", id="the same manifests again change nothing"),
        pytest.param([a_planned_service(replicas=2)], 1, "+ default/web", id="a service that fits is a change"),
        pytest.param([a_planned_service(compliance=["fedramp"])], 2, "without compliance fedramp", id="a service that fits nowhere"),
        pytest.param(
            [manifest("LatticeNodeClass", "tiny", {"resources": {"cores": 1, "memoryGi": 1}})], 1, "1 declaration changed",
            id="a node class without an offer is declared",
        ),
    ],
)  # fmt: skip
def test_plan_exit_codes(lattice, tmp_path, change, code, told):
    files = (
        ["-f", write(tmp_path / "change.yaml", *change)] if change else ["-f", f"{SEED_000}/services.yaml"]
    )
    ran = lattice("plan", "--world", SEED_000, *files)
    assert ran.code == code, ran.out + ran.err
    assert told in ran.out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--bogus"], "No such option", id="an unknown flag"),
        pytest.param(["--world", SEED_000, "-o", "yaml"], "is not an output format", id="an unknown form"),
        pytest.param(["--world", SEED_000, "extra"], "unexpected extra argument", id="a word too many"),
        pytest.param(["-f"], "requires an argument", id="a flag without its value"),
        pytest.param([], "no server is configured", id="no server and no world"),
        pytest.param(["--world", "nowhere"], "nowhere: cannot be read", id="a world that is not there"),
        pytest.param(
            ["--world", SEED_000, "-f", "gone.yaml"],
            "gone.yaml: cannot be read",
            id="a manifest that is not there",
        ),
        pytest.param(
            ["--world", SEED_000, "--delete", "pools"], "'pools' is not kind/name", id="deleting a whole kind"
        ),
        pytest.param(
            ["--world", SEED_000, "--delete", "pool/nope"],
            "there is no pool/nope",
            id="deleting what is not there",
        ),
        pytest.param(
            ["--world", SEED_000, "--delete", "secret/x"],
            "placement does not use Secret",
            id="deleting what does not matter",
        ),
        pytest.param(
            ["--world", SEED_000, "--prices", "none.csv"],
            "none.csv: cannot be read",
            id="a price file that is not there",
        ),
        pytest.param(
            ["--world", SEED_000, "-f", f"{SEED_000}/pools.yaml", "-f", f"{SEED_000}/pools.yaml"],
            "appears twice",
            id="twice",
        ),
    ],
)
def test_every_plan_error_exits_with_3_or_more(lattice, arguments, told):
    ran = lattice("plan", *arguments)
    assert ran.code >= 3
    assert told in ran.err
    assert ran.out == ""


def test_invalid_manifest_is_reported_with_its_line(lattice, tmp_path):
    wrong = a_planned_service()
    wrong["spec"]["replicas"] = {"min": -2}
    wrong["spec"]["placement"]["complience"] = ["gdpr"]
    ran = lattice("plan", "--world", SEED_000, "-f", write(tmp_path / "wrong.yaml", wrong))
    assert ran.code >= 3
    assert "wrong.yaml:" in ran.err
    assert "spec.replicas.min" in ran.err
    assert "spec.placement.complience" in ran.err


def test_managed_kinds_cannot_be_planned(lattice, tmp_path):
    made = manifest("LatticeCluster", "us-east-001", {"pool": "us-east"})
    ran = lattice("plan", "--world", SEED_000, "-f", write(tmp_path / "made.yaml", made))
    assert ran.code >= 3
    assert "LatticeCluster is written by Lattice only" in ran.err


def test_plan_of_pool_deletion_keeps_running_replicas(lattice):
    ran = lattice("plan", "--world", SEED_000, "--delete", "pool/us-east")
    assert ran.code == 2, "there is nowhere that they would go"
    lines = squeezed_lines(ran.out)
    assert lines[0] == "3 services without another pool; $1.536/h, unchanged"
    assert any(line.startswith("default/api-gateway nowhere us-east is no longer offered") for line in lines)
    assert "Running replicas are not moved automatically." in lines
    assert not any("us-east-002" in line or "empty nodes" in line or "one region" in line for line in lines)


def test_hypothetical_baseline_is_labelled(lattice, tmp_path):
    """Nothing of this world runs yet: a plan of a deletion begins where all of it would."""
    ran = lattice("plan", "--world", SEED_000, "--delete", "pool/us-east")
    assert "$1.536/h, unchanged" in ran.out
    told = "! Before and after count pending work as done (3 services still wait). Current cost: $0.00/h."
    assert told in ran.out.splitlines()
    pending = json.loads(lattice("plan", "--world", SEED_000, "--delete", "pool/us-east", "-o", "json").out)[
        "pending"
    ]
    assert pending["services"] == ["default/api-gateway", "default/cache", "default/database"]
    assert (pending["cost"]["before"]["hourlyMicros"], pending["cost"]["after"]["hourlyMicros"]) == (
        0,
        1_536_000,
    )
    real = lattice("plan", "--world", SEED_000)
    assert "count pending work" not in real.out
    assert json.loads(lattice("plan", "--world", SEED_000, "-o", "json").out)["pending"] is None


def test_partly_placed_service_shows_replicas_and_cost(lattice, tmp_path):
    room = {"provider": {"type": "aws", "region": "r"}, "capacity": {"maxNodes": 2}, "nodeClasses": ["m"]}
    small = {"providers": {"aws": {}}, "resources": {"cores": 4, "memoryGi": 16}, "costPerHour": {"aws": 0.2}}
    objects = [
        manifest("LatticePool", "p", room),
        manifest("LatticeNodeClass", "m", small),
        a_planned_service(cores=3, replicas=3),
        a_planned_service("none", 9),
    ]
    world = write(tmp_path / "world.yaml", *objects)
    ran = lattice("plan", "--world", world)
    assert ran.code == 2
    lines = squeezed_lines(ran.out)
    assert (
        lines[0]
        == "1 cluster created, 2 nodes more, 1 service partly placed, 1 service not placed; $0.00/h → $0.40/h (+$288.00/30d)"
    )
    assert "+ default/web p 2 (2 of 3 replicas) +$0.40 +$288.00" in lines
    assert any(line.startswith("! default/web 2 of 3 NotNow ") for line in lines)
    assert any(line.startswith("! default/none 0 of 1 Never ") for line in lines)
    cost = squeezed_lines(lattice("cost", "--by", "service", "--world", world).out)
    assert "default/web $0.40 $288.00 100.0 %" in cost
    assert "1 service partly placed, counted by their placed replicas: default/web 2 of 3" in cost
    assert "1 service not placed, not counted: default/none" in cost
    why = lattice("why", "web", "--world", world).out
    assert why.startswith("default/web: NotNow, 2 of 3 replicas placed. replica 3 of 3: ")
    assert "3 replicas desired, not placed yet; $0.40/h, $288.00/30d for 2" in why
    assert lattice("fit", "web", "--world", world).out.startswith(
        "default/web: NotNow, 2 of 3 replicas placed. "
    )


def test_plan_id_depends_only_on_its_content(lattice, tmp_path):
    def planned(*arguments):
        return json.loads(lattice("plan", "--world", SEED_000, "-o", "json", *arguments).out)["id"]

    one, two = (write(tmp_path / f"{n}.yaml", a_planned_service(replicas=n)) for n in (1, 2))
    assert planned("-f", one) == planned("-f", one)
    assert planned("-f", one) != planned("-f", two)


def test_a_plan_of_files_points_to_no_apply(lattice, tmp_path):
    """A server may come to another plan, so it is the server that has to be asked."""
    change = write(tmp_path / "my web.yaml", a_planned_service())
    ran = lattice("plan", "--world", SEED_000, "-f", change, "-n", "shop")
    assert "+ shop/web" in ran.out
    assert "apply" not in ran.out
    assert ran.out.splitlines()[-1].endswith(
        f"   computed from these files; to plan on a server: lattice plan -f '{change}' -n shop"
    )


def test_budget_below_its_usage_is_marked(lattice, tmp_path):
    pools = Path(SEED_000, "pools.yaml").read_text().replace("maxMonthlyCost: 6000", "maxMonthlyCost: 100")
    (tmp_path / "pools.yaml").write_text(pools)
    ran = lattice("plan", "--world", SEED_000, "-f", "pools.yaml")
    assert "! latticepool/eu-west $6,000.00 → $100.00 9 % → 552 % 80 % hard $0.00" in squeezed_lines(ran.out)


def test_file_prices_take_precedence_and_show_their_age(lattice, tmp_path):
    world = tmp_path / "world"
    shutil.copytree(SEED_000, world)
    classes = [
        each
        for each in yaml.safe_load_all((world / "nodeclasses.yaml").read_text())
        if each["metadata"]["name"] == "medium"
    ]
    classes[0]["spec"].pop("costPerHour")
    write(world / "nodeclasses.yaml", *classes)
    built_in = lattice("plan", "--world", str(world))
    assert "prices: built-in table as of 2026-08-22" in built_in.out
    (tmp_path / "aws.csv").write_text(
        "InstanceType,Region,Price\nm5.xlarge,us-east-1,0.5\nm5.xlarge,eu-west-1,0.25\n"
    )
    ran = lattice("plan", "--world", str(world), "--prices", "aws.csv", "-o", "wide")
    assert any(line.startswith("us-east medium 4 $0.50 aws.csv as of ") for line in squeezed_lines(ran.out))
    (tmp_path / "aws.csv").write_text("InstanceType,Region,Price\nm5.xlarge,us-east-1,lots\n")
    wrong = lattice("plan", "--world", str(world), "--prices", "aws.csv")
    assert wrong.code >= 3
    assert "aws.csv line 2" in wrong.err


def test_estimated_latencies_are_labelled(lattice, tmp_path):
    near = a_planned_service("edge", latency={"database": {"maxMs": 300}}, requiredRegions=["ap-south"])
    change = write(tmp_path / "edge.yaml", near)
    ran = lattice("plan", "--world", SEED_000, "-f", change)
    assert ran.code == 1, ran.out
    assert "latencies: 1 of 1 are estimates" in ran.out
    assert "estimated over" in lattice("plan", "--world", SEED_000, "-f", change, "-o", "wide").out
    (tmp_path / "ms.csv").write_text("from,to,ms\nap-south,us-east,200\nap-south,eu-west,400\n")
    assert "estimates" not in lattice("plan", "--world", SEED_000, "-f", change, "--latency", "ms.csv").out


def test_unrelated_kinds_are_ignored(lattice, tmp_path):
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    ran = lattice("plan", "--world", SEED_000, "-f", write(tmp_path / "all.yaml", space, a_planned_service()))
    assert ran.code == 1
    assert "ignored 1 Namespace" in ran.err


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fleet")
    with running_server(folder / ".lattice") as server:
        yield server


def test_stale_plan_is_not_applied(real, tmp_path):
    """Against a real server, from planning to refusal."""
    planned = real.lattice("plan", "-f", SEED_000, "-o", "json")
    assert planned.returncode == 1, planned.stderr
    kept = tmp_path / "plan.json"
    kept.write_text(planned.stdout)
    document = json.loads(planned.stdout)
    assert [each["name"] for each in document["services"]] == [
        "default/api-gateway",
        "default/cache",
        "default/database",
    ]

    wrong = real.lattice("apply", "-f", SEED_000, "--plan", "p-0000000000000000")
    assert wrong.returncode >= 3
    assert "nothing was applied" in wrong.stderr
    assert document["id"] in wrong.stderr
    assert "+ default/api-gateway" in wrong.stderr
    assert real.lattice("get", "pools", "-o", "name").stdout == ""

    assert real.lattice("apply", "-f", SEED_000, "--plan", document["id"]).returncode == 0
    assert real.lattice("plan", "-f", SEED_000).returncode == 0

    again = real.lattice("apply", "-f", SEED_000, "--plan", str(kept))
    assert again.returncode >= 3
    assert "service default/api-gateway: is no longer in the plan" in again.stderr


def test_a_viewer_can_plan(real, tmp_path):
    change = write(tmp_path / "web.yaml", a_planned_service())
    viewer = str(real.mint("ann", "lattice:viewers"))
    real.lattice("apply", "-f", SEED_000)
    ran = real.lattice("plan", "-f", change, "--kubeconfig", viewer)
    assert ran.returncode == 1, ran.stderr
    assert "+ default/web" in ran.stdout


def test_plan_prints_its_apply_command(real, tmp_path):
    change = write(tmp_path / "my web.yaml", a_planned_service())
    real.lattice("apply", "-f", SEED_000)
    ran = real.lattice("plan", "-f", change)
    assert f"apply with: lattice apply -f '{change}' --plan p-" in ran.stdout


def test_stale_plan_lists_only_the_differences(real, tmp_path):
    """Asked for by its id, or kept in a file: two services are planned, one of them comes out otherwise."""
    change = write(tmp_path / "two.yaml", a_planned_service("one"), a_planned_service("two", replicas=2))
    real.lattice("apply", "-f", SEED_000)
    planned = real.lattice("plan", "-f", change, "-o", "json")
    kept = tmp_path / "plan.json"
    kept.write_text(planned.stdout)
    assert real.lattice("apply", "-f", "-", stdin=json.dumps(a_planned_service("one"))).returncode == 0
    for plan in (json.loads(planned.stdout)["id"], str(kept)):
        for dry in ([], ["--dry-run=server"]):
            refused = real.lattice("apply", "-f", change, "--plan", plan, *dry)
            assert refused.returncode == 3, refused.stdout
            assert "service default/one: is no longer in the plan" in refused.stderr
            assert "the current plan:" not in refused.stderr
            unchanged = [
                line for line in refused.stderr.splitlines() if re.search(r"was (.+), now \1(;|$)", line)
            ]
            assert unchanged == []
    assert real.lattice("delete", "service/one").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param(["--plan", "yesterday"], "neither the id of a plan nor a file", id="no plan"),
        pytest.param(["--plan", f"{SEED_000}/pools.yaml"], "is not a plan", id="another file"),
        pytest.param(["--plan", "p-0", "--dry-run=client"], "--plan needs a server", id="without a server"),
        pytest.param(
            ["--prices", "aws.csv"], "--prices and --latency need --plan", id="prices without a plan"
        ),
    ],
)
def test_apply_takes_plans_only(lattice, arguments, told):
    ran = lattice("apply", "-f", SEED_000, *arguments)
    assert ran.code != 0
    assert told in ran.err
