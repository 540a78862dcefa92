"""Unknown prices and latencies are shown as unknown, in documents and in tables, never as a number (M12)."""

from build.placed_worlds import a_placed_world
from build.worlds import a_class, a_pool, a_service, a_world

from lattice.cli.output.cost_tables import cost_lines
from lattice.cli.output.plan_tables import plan_lines, pool_loss_lines
from lattice.cli.output.service_tables import why_lines
from lattice.cli.output.table_renderer import TableRenderer
from lattice.placement.queries.dispatch import answer_query

UNPRICED = a_class(price=None)
ADVICE = "! the price of 1 node of class m in p1 is unknown, not counted: declare costPerHour of the class"


def test_cost_shows_an_unknown_price_as_unknown() -> None:
    document = answer_query({"ask": "cost"}, a_world(UNPRICED, a_pool(), a_service()))
    assert [(row["name"], row["unpricedMachines"]) for row in document["rows"]] == [("p1", 1)]
    lines = cost_lines(document, TableRenderer())
    assert lines[1].split() == ["p1", "unknown", "unknown", "0.0", "%", "$0.00"]
    assert ADVICE in lines


def test_total_with_an_unknown_price_is_a_lower_bound() -> None:
    world = a_world(
        UNPRICED,
        a_class("n", price=0.1),
        a_pool(),
        a_pool("p2", classes=["n"]),
        a_service("a", requiredRegions=["p1"]),
        a_service("b", requiredRegions=["p2"]),
    )
    lines = cost_lines(answer_query({"ask": "cost"}, world), TableRenderer())
    assert [line.split()[:3] for line in lines[1:4]] == [
        ["p2", "$0.10", "$72.00"],
        ["p1", "unknown", "unknown"],
        ["total", "≥", "$0.10"],
    ]


def test_plan_shows_an_unknown_price_as_unknown() -> None:
    document = answer_query({"ask": "plan"}, a_world(UNPRICED, a_pool()), [a_service()])
    lines = plan_lines(document, TableRenderer())
    assert lines[0].endswith("$0.00/h → unknown, with 1 node of unknown price")
    assert next(line for line in lines if line.split()[:2] == ["p1", "$0.00"]).split()[2:] == ["unknown"] * 3
    assert next(line for line in lines if "default/api" in line).split()[-2:] == ["unknown", "unknown"]
    assert next(line for line in lines if "p1-001" in line).split()[-1] == "unknown"
    assert ADVICE in lines


def test_why_shows_an_unknown_price_as_unknown() -> None:
    document = answer_query(
        {"ask": "why", "service": "default/api"}, a_world(UNPRICED, a_pool(), a_service())
    )
    text = "\n".join(why_lines(document, TableRenderer()))
    assert "the price of a node is unknown" in text
    assert "$0.00" not in text


def test_unknown_latency_is_a_reason_of_its_own() -> None:
    world = a_world(
        a_pool("p1"),
        a_pool("p2"),
        a_service("db", requiredRegions=["p1"]),
        a_service(requiredRegions=["p2"], latency={"db": {"maxMs": 300}}),
    )
    document = answer_query({"ask": "why", "service": "default/api"}, world)
    assert "1 without a known latency to db" in document["reason"]
    assert "more than 300 ms" not in document["reason"]


def test_present_cost_with_an_unknown_price_is_unknown() -> None:
    world = a_placed_world(UNPRICED, a_pool(), a_service(cores=4))
    document = answer_query({"ask": "plan"}, world, [a_service(cores=4, replicas=2)])
    lines = plan_lines(document, TableRenderer())
    assert "unknown → unknown, with 2 nodes of unknown price" in lines[0]
    drill = answer_query({"ask": "whatif", "loseEach": True}, world)
    assert ADVICE in pool_loss_lines(drill, TableRenderer())
