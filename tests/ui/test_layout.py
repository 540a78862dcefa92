"""Computations of the page without drawing: packing of boxes, formatting of amounts, sorting of rows."""

from collections.abc import Iterator
from typing import Any

import pytest
from build.browser import UiServer, Visitor
from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.xdist_group("ui"), pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def page(browser: Browser, ui_server: UiServer) -> Iterator[Page]:
    visitor = Visitor(browser, ui_server)
    yield visitor("#/fleet", group="")
    visitor.close()
    assert visitor.wrongs == []


def run(page: Page, module: str, body: str, *given: Any) -> Any:
    """The result of a script that sees the module as `it` and its arguments as `given`."""
    return page.evaluate(
        f"async (given) => {{ const it = await import('/ui/lib/{module}.js'); {body} }}", list(given)
    )


WEIGHTS = [[1], [5, 1], [6, 6, 4, 3, 2, 2, 1], [1000, 1], [1] * 200, list(range(1, 60))]


def test_treemap_boxes_fill_the_frame_by_weight(page: Page) -> None:
    for weights in WEIGHTS:
        items = [{"key": str(at), "weight": weight} for at, weight in enumerate(weights)]
        boxes = run(page, "treemap", "return it.squarify(given[0], { x: 10, y: 20, w: 600, h: 400 });", items)
        scale = 600 * 400 / sum(weights)
        assert len(boxes) == len(weights)
        for box in boxes:
            assert box["w"] * box["h"] == pytest.approx(box["item"]["weight"] * scale)
            assert box["x"] + 1e-6 >= 10
            assert box["x"] + box["w"] <= 610 + 1e-6
            assert box["y"] + 1e-6 >= 20
            assert box["y"] + box["h"] <= 420 + 1e-6
        assert not [1 for at, one in enumerate(boxes) for other in boxes[:at] if _overlap(one, other)]


def _overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    near = 1e-6
    return (
        one["x"] + near < other["x"] + other["w"]
        and other["x"] + near < one["x"] + one["w"]
        and one["y"] + near < other["y"] + other["h"]
        and other["y"] + near < one["y"] + one["h"]
    )


@pytest.mark.parametrize(
    ("weights", "room"),
    [([0, 0], {"w": 9, "h": 9}), ([], {"w": 9, "h": 9}), ([1], {"w": 0, "h": 9})],
    ids=["no weight", "nothing", "no room"],
)
def test_empty_treemap_draws_nothing(weights: list[int], room: dict[str, int], page: Page) -> None:
    items = [{"key": str(at), "weight": weight} for at, weight in enumerate(weights)]
    assert (
        run(page, "treemap", "return it.squarify(given[0], { x: 0, y: 0, ...given[1] });", items, room) == []
    )


def test_nested_boxes_stay_inside_and_collapse_when_too_many(page: Page) -> None:
    tree = [
        {"key": f"r{r}", "weight": 40, "children": [{"key": f"r{r}n{n}", "weight": 1} for n in range(40)]}
        for r in range(3)
    ]
    script = "return it.nested(given[0], { x: 0, y: 0, w: 900, h: 500 }, given[1]);"
    boxes = run(page, "treemap", script, tree, 1500)
    assert len(boxes) == 3 + 120
    frames = {box["item"]["key"]: box for box in boxes if box["depth"] == 0}
    for box in boxes:
        if box["depth"] == 1:
            frame = frames[box["parent"]["key"]]
            assert frame["x"] <= box["x"]
            assert box["x"] + box["w"] <= frame["x"] + frame["w"]
            assert frame["y"] < box["y"]
            assert box["y"] + box["h"] <= frame["y"] + frame["h"]
    few = run(page, "treemap", script, tree, 50)
    assert len(few) <= 50
    assert [box["open"] for box in few if box["depth"] == 0] == [True, False, False]


def test_amounts_are_formatted_for_people(page: Page) -> None:
    said = [
        ("money", 1_234_500_000, "$1,234.50"),
        ("money", 5200, "$0.0052"),
        ("money", -250_000, "−$0.25"),
        ("money", 0, "$0.00"),
        ("money", None, "–"),
        ("hourly", 64_000, "$0.064/h"),
        ("monthly", 64_000, "$46.08 in 30 days"),
        ("cores", 1000, "1 core"),
        ("cores", 250, "0.25 cores"),
        ("cpu", 16_500, "16.5"),
        ("cpu", 1_234_567, "1,235"),
        ("bytes", 1 << 30, "1 GiB"),
        ("bytes", 640 << 20, "640 MiB"),
        ("bytes", 1_600_000_000, "1.5 GiB"),
        ("percent", 0.004, "<1%"),
        ("percent", 0.356, "36%"),
        ("span", 119, "119s"),
        ("span", 7199, "119m"),
        ("span", 90_000, "25h"),
    ]
    for name, amount, words in said:
        assert run(page, "format", "return it[given[0]](given[1]);", name, amount) == words, name


def test_rows_are_sorted_in_natural_order(page: Page) -> None:
    script = """const rows = given[0].map((name) => ({ path: name, name }));
        const columns = [{ name: "name", value: (row) => row.name }];
        return it.sortedBy(rows, columns, { by: "name", down: given[1] }).map((row) => row.name);"""
    assert run(page, "parts", script, ["web-10", "api", "web-2", None], False) == [
        "api",
        "web-2",
        "web-10",
        None,
    ]
    assert run(page, "parts", script, ["web-10", "api", "web-2"], True) == ["web-10", "web-2", "api"]


def test_incremental_sort_equals_full_sort(page: Page) -> None:
    script = """const columns = [{ name: "seen", value: (row) => row.seen }];
        const sort = { by: "seen", down: true };
        const before = it.sortedBy(given[0], columns, sort);
        return [it.sortedBy(given[1], columns, sort, before), it.sortedBy(given[1], columns, sort)];"""
    rows = [{"path": f"/{number}", "seen": number * 7 % 10} for number in range(10)]
    changed = [{**row, "seen": 99} if row["path"] == "/4" else row for row in rows[2:]] + [
        {"path": "/new", "seen": 5}
    ]
    again, anew = run(page, "parts", script, rows, changed)
    assert again == anew
    assert [row["path"] for row in again][:2] == ["/4", "/7"]


def test_loads_follow_each_workload_and_add_up(page: Page) -> None:
    script = """const loads = new it.Loads();
        const first = given.map((note) => { loads.take(note); return loads.of("n1"); });
        const [before, after] = [loads.of("n2"), (loads.take({ rows: [], gone: ["a"] }), loads.of("n2"))];
        return { first, kept: before === after, n2: after };"""

    def a_workload(path: str, node: str, cpu: int) -> dict[str, Any]:
        return {"path": path, "node": node, "cpu": cpu, "memory": 2 * cpu}

    notes = [
        {
            "rows": [a_workload("a", "n1", 100), a_workload("b", "n1", 50), a_workload("c", "", 9)],
            "gone": [],
            "anew": True,
        },
        {"rows": [a_workload("b", "n2", 70)], "gone": ["nobody"]},
        {"rows": [a_workload("a", "n1", 30)], "gone": []},
    ]
    found = run(page, "loads", script, *notes)
    assert [(each["cpu"], each["memory"], len(each["workloads"])) for each in found["first"]] == [
        (150, 300, 2),
        (100, 200, 1),
        (30, 60, 1),
    ]
    assert (found["kept"], found["n2"]["cpu"]) == (True, 70), (
        "what did not change is the same, and is not drawn anew"
    )


@pytest.mark.parametrize(
    ("address", "route"),
    [
        ("", {"view": "", "params": [], "query": {}}),
        (
            "#/services/default/a%2Fb?tab=fit",
            {"view": "services", "params": ["default", "a/b"], "query": {"tab": "fit"}},
        ),
        ("#/nodes/%E0%A4", {"view": "nodes", "params": ["%E0%A4"], "query": {}}),
    ],
)
def test_addresses_are_parsed(address: str, route: dict[str, Any], page: Page) -> None:
    assert run(page, "route", "return it.parse(given[0]);", address) == route


def test_drain_and_uncordon_keep_other_taints(page: Page) -> None:
    other = {"key": "gpu", "effect": "NoSchedule"}
    drained = run(page, "marks", "return it.drained(given[0]);", {"pool": "p", "taints": [other]})
    assert drained == {
        "pool": "p",
        "unschedulable": True,
        "taints": [other, {"key": "lattice.dev/draining", "effect": "NoExecute"}],
    }
    assert run(page, "marks", "return it.drained(given[0]);", drained) == drained
    assert run(page, "marks", "return it.uncordoned(given[0]);", drained) == {"pool": "p", "taints": [other]}
    assert run(page, "marks", "return it.uncordoned(it.cordoned(given[0]));", {"pool": "p"}) == {"pool": "p"}
