"""Output of plan, fit, optimise, cost and why: changes, costs and errors, in tables that fit a terminal."""

from dataclasses import replace
from pathlib import Path

import pytest
from build.cli_output import squeezed_lines
from build.manifests import manifest, write
from build.worlds import a_class, a_pool, a_service

from lattice.cli.client.options import Connection
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.fleet.offline_world import load_world
from lattice.cli.output.plan_tables import plan_lines
from lattice.cli.output.service_tables import fit_lines
from lattice.cli.output.table_renderer import TableRenderer
from lattice.placement.model.world import World
from lattice.placement.queries.dispatch import answer_query

EXAMPLES = Path(__file__).parents[3] / "examples"
WIDTH = 100
pytestmark = pytest.mark.usefixtures("no_server")


CLASS = manifest(
    "LatticeNodeClass",
    "m",
    {"providers": {"aws": {}}, "resources": {"cores": 4, "memoryGi": 16}, "costPerHour": {"aws": 0.2}},
)


def a_manifest_of_a_pool(budget=600, **capacity):
    provider = {"type": "aws", "region": "us-east-1"}
    return manifest(
        "LatticePool",
        "p1",
        {
            "provider": provider,
            "nodeClasses": ["m"],
            "capacity": capacity,
            "budget": {"maxMonthlyCost": budget},
        },
    )


def a_manifest_of_a_service(replicas=3, image="a:1", **metadata):
    spec = {
        "containers": {"main": {"image": image}},
        "placement": {"resources": {"cores": 3, "memoryGi": 1}},
        "replicas": {"min": replicas},
    }
    return manifest("LatticeService", "api", spec, **metadata)


@pytest.fixture
def world(tmp_path):
    return write(tmp_path / "world.yaml", CLASS, a_manifest_of_a_pool(), a_manifest_of_a_service())


def test_plan_of_a_budget_change_has_an_id(lattice, tmp_path, world):
    ran = lattice("plan", "--world", world, "-f", write(tmp_path / "pool.yaml", a_manifest_of_a_pool(700)))
    assert ran.code == 1, ran.err
    lines = squeezed_lines(ran.out)
    assert lines[0] == "1 declaration changed, no placement changes; $0.60/h, unchanged"
    assert "~ latticepool/p1 spec.budget.maxMonthlyCost 600 → 700" in lines
    assert "latticepool/p1 $600.00 → $700.00 72 % → 61 % 80 % hard $0.3722" in lines
    assert lines[-1].startswith("plan p-")


def test_plan_lists_an_image_change(lattice, tmp_path, world):
    ran = lattice(
        "plan", "--world", world, "-f", write(tmp_path / "api.yaml", a_manifest_of_a_service(image="a:2"))
    )
    assert ran.code == 1, ran.err
    assert "~ latticeservice/default/api spec.containers.main.image a:1 → a:2" in squeezed_lines(ran.out)


def test_plan_of_unchanged_manifests_changes_nothing(lattice, world):
    ran = lattice("plan", "--world", world, "-f", world)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("nothing changes; $0.60/h, unchanged\n")
    assert "plan p-" not in ran.out


def test_budget_usage_is_of_the_rule_that_binds(lattice, world):
    lines = squeezed_lines(lattice("plan", "--world", world).out)
    assert any(line.startswith("BUDGET PER MONTH USED ALERT AT LIMIT LEFT $/H") for line in lines)


def test_fit_shows_the_cost_of_each_change(lattice, tmp_path):
    world = write(
        tmp_path / "full.yaml", CLASS, a_manifest_of_a_pool(500, maxNodes=3), a_manifest_of_a_service(5)
    )
    ran = lattice("fit", "service/api", "--world", world)
    assert ran.code == 0, ran.err
    lines = squeezed_lines(ran.out)
    assert "BY COSTS $/H 30 DAYS MORE $/H CHANGE" in lines
    assert "1 team $0.60 $432.00 none run 3 replicas instead of 5" in lines
    assert "3 platform $1.00 $720.00 +$0.40 raise maxNodes of p1 by 2 to 5" in lines
    assert "platform and raise the budget of p1 by $220.00 a month to $720.00" in lines
    assert (
        "COSTS: cost of this service after the change (now $0.60/h with 3 of 5 replicas). MORE: increase of the total bill."
        in lines
    )


@pytest.mark.parametrize(
    "command",
    [["plan"], ["cost"], ["why", "service/api"], ["fit", "service/api"], ["optimise"]],
    ids=lambda each: each[0],
)
def test_undeclared_namespace_is_an_error(lattice, tmp_path, command):
    world = write(
        tmp_path / "shop.yaml", CLASS, a_manifest_of_a_pool(), a_manifest_of_a_service(namespace="shop")
    )
    ran = lattice(*command, "-n", "nope", "--world", world)
    assert ran.code == 3, ran.out
    assert ran.out == ""
    assert ran.err == "error: there is no namespace nope\n  fix: use one of: shop\n"


def test_namespace_of_the_manifests_is_accepted(lattice, tmp_path):
    world = write(tmp_path / "supply.yaml", CLASS, a_manifest_of_a_pool())
    ran = lattice(
        "plan", "-n", "shop", "--world", world, "-f", write(tmp_path / "api.yaml", a_manifest_of_a_service())
    )
    assert ran.code == 1, ran.err
    assert "+ shop/api p1 3 +$0.60 +$432.00" in squeezed_lines(ran.out)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "rtt.csv: is empty", id="empty"),
        pytest.param(
            "from,to,ms\nus-east-1,nowhere,3\n",
            'rtt.csv line 2: "nowhere" is no place that is offered',
            id="an unknown place",
        ),
    ],
)
def test_latency_file_error_names_its_line(lattice, tmp_path, world, text, told):
    (tmp_path / "rtt.csv").write_text(text)
    ran = lattice("plan", "--world", world, "--latency", "rtt.csv")
    assert ran.code >= 3
    assert ran.err.startswith(f"error: {told}\n  fix: ")


def test_latency_file_may_name_a_planned_pool(lattice, tmp_path, world):
    (tmp_path / "rtt.csv").write_text("from,to,ms\np1,p2,3\n")
    more = a_manifest_of_a_pool()
    more["metadata"]["name"], more["spec"]["provider"]["region"] = "p2", "us-east-2"
    ran = lattice("plan", "--world", world, "--latency", "rtt.csv", "-f", write(tmp_path / "more.yaml", more))
    assert ran.code == 1, ran.err


def test_optimise_help_lists_exit_codes(lattice):
    told = " ".join(lattice("optimise", "--help").out.split())
    assert (
        "Exit code: 0 if nothing would change, 1 if moves would save money, 2 if a service is or would be left unplaced"
        in told
    )
    assert "3 or more on an error" in told


def test_plan_with_many_placements_fits_a_terminal():
    """A service in many pools: where it goes is folded, the money stays beside it."""
    names = [f"somewhere-far-away-{number}" for number in range(8)]
    pools = [a_pool(name, region=name, capacity={"maxNodes": 1}) for name in names]
    world = World.of([a_class(), *pools])
    lines = plan_lines(
        answer_query({"ask": "plan"}, world, [a_service(cores=3, replicas=8)]), TableRenderer(max_width=WIDTH)
    )
    assert max(map(len, lines)) <= WIDTH
    (row,) = (line for line in lines if line.startswith("+ default/api"))
    assert row.endswith("+$1.60   +$1,152.00")
    assert all(any(name in line for line in lines) for name in names)


def test_text_columns_shrink_and_number_columns_do_not():
    rows = [
        ["one two three four five six seven", "1,000,000", "eight nine ten eleven twelve thirteen fourteen"]
    ]
    heads, first, *more = TableRenderer(max_width=76).table(
        ["WORDS", "NUMBER", "MORE"], rows, right_aligned=(1,)
    )
    assert max(map(len, (heads, first, *more))) <= 76
    assert "1,000,000" in first
    assert " ".join(more[0].split()) == "seven thirteen fourteen"
    (whole,) = TableRenderer(max_width=0).table(["WORDS", "NUMBER", "MORE"], rows, right_aligned=(1,))[1:]
    assert len(whole) > 76


LONG_SCRIPT = "import time\nwhile True:\n    time.sleep(1)\n    print('a line that says nothing', flush=True)\nprint('{}')"


@pytest.mark.parametrize(
    ("change", "headline"),
    [
        pytest.param({}, "1 service restarted replica by replica, no placement changes; $0.60/h, unchanged", id="nothing else"),
        pytest.param(
            {"labels": {"team": "a"}}, "1 service restarted replica by replica, no placement changes; $0.60/h, unchanged",
            id="a label of it as well",
        ),
        pytest.param(
            {"replicas": 2},
            "1 service changed, 1 cluster changed, 1 node fewer, 1 service restarted replica by replica; $0.60/h → $0.40/h (-$144.00/30d)",
            id="fewer of them as well",
        ),
    ],
)  # fmt: skip
def test_command_change_is_a_restart_with_its_difference(lattice, tmp_path, change, headline):
    before, after = (a_manifest_of_a_service(**more) for more in ({}, change))
    for each, last in ((before, "one"), (after, "two")):
        each["spec"]["containers"]["main"]["command"] = ["python3", "-c", LONG_SCRIPT.format(last)]
    world = write(tmp_path / "running.yaml", CLASS, a_manifest_of_a_pool(), before)
    ran = lattice("plan", "--world", world, "-f", write(tmp_path / "api.yaml", after))
    assert ran.code == 1, ran.err
    lines = squeezed_lines(ran.out)
    assert lines[0] == headline
    shown = next(line for line in lines if "spec.containers.main.command" in line)
    assert "print('one')\"] → …" in shown
    assert shown.endswith("print('two')\"]")


def test_label_change_restarts_nothing(lattice, tmp_path, world):
    ran = lattice(
        "plan",
        "--world",
        world,
        "-f",
        write(tmp_path / "api.yaml", a_manifest_of_a_service(labels={"team": "a"})),
    )
    assert ran.out.splitlines()[0] == "1 declaration changed, no placement changes; $0.60/h, unchanged"


def test_unrelated_pending_service_keeps_plan_feasible(lattice, tmp_path):
    waiting = a_manifest_of_a_service()
    waiting["metadata"]["name"], waiting["spec"]["placement"]["compliance"] = "a-vault", ["fedramp"]
    world = write(tmp_path / "waiting.yaml", CLASS, a_manifest_of_a_pool(), waiting)
    fits, never = a_manifest_of_a_service(1), a_manifest_of_a_service(1)
    never["metadata"]["name"], never["spec"]["placement"]["compliance"] = "never", ["fedramp"]
    ran = lattice("plan", "--world", world, "-f", write(tmp_path / "fits.yaml", fits))
    assert (ran.code, "lattice fit" in ran.out) == (1, False), ran.out
    assert "1 service placed, 1 cluster created, 1 node more, 1 service not placed (unchanged);" in ran.out
    ran = lattice("plan", "--world", world, "-f", write(tmp_path / "never.yaml", fits, never))
    assert ran.code == 2
    assert "`lattice fit service/never " in ran.out
    assert lattice("plan", "--world", world, "-f", write(tmp_path / "again.yaml", waiting)).code == 2, (
        "it is what is asked about"
    )
    assert lattice("plan", "--world", world).code == 2, "all that is declared is asked about"


def test_fit_needing_several_changes_says_so():
    """A cloud's pools are closed where machines are made of provider `local` only, and those of that provider lack one thing after the other."""
    sources = FleetInputs(
        Connection(explicit_namespace="default"),
        world_files=(str(EXAMPLES / "worlds" / "seed-000"), str(EXAMPLES / "quickstart")),
    )
    world = replace(load_world(sources), adapters={"local": None})
    document = answer_query({"ask": "fit", "service": "default/api-gateway"}, world)
    assert document["suggestions"] == []
    told = " ".join(" ".join(fit_lines(document, TableRenderer(False, 0, False))).split())
    assert "no tried change places the service: 7 requirements would have to change together" in told
    assert "no tried change places the service;" not in told
