"""How many of a service may be stopped: asked once, counted down, and given back when nothing came of it."""

import pytest
from small import ask, nodes, put

from lattice.lifecycle.allowance import Allowance, may_displace
from lattice.lifecycle.node_health import Standing
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.cycle.profile import compile_preset
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.cycle.cycle import CompositeScheduler


@pytest.mark.parametrize(
    ("found", "spare"),
    [
        pytest.param(Standing(3, 2), 1, id="one more is ready than must be"),
        pytest.param(Standing(2, 2), 0, id="no more are"),
        pytest.param(Standing(1, 2), 0, id="fewer are: it gets no worse"),
        pytest.param(Standing(3, 2, is_changing=True), 0, id="an update has one more for itself"),
    ],
)
def test_how_many_may_be_displaced(found: Standing, spare: int) -> None:
    assert may_displace(found) == spare


def test_each_service_is_asked_about_once_until_all_is_cleared() -> None:
    asked: list[str] = []
    found = Allowance(lambda service: asked.append(service) or (None if service == "default/free" else 2))
    assert ["default/a" in found, "default/a" in found, "default/free" in found, "" in found] == [
        True,
        True,
        False,
        False,
    ]
    found["default/a"] -= 1
    assert (found, asked) == ({"default/a": 1}, ["default/a", "default/free"])
    found.clear()
    assert ("default/a" in found, found["default/a"]) == (True, 2)


def test_a_gang_that_gives_up_has_used_nothing_of_it() -> None:
    table = nodes(1000, 1000)
    for number in range(2):
        put(table, f"n{number}", [ask(table, f"low{number}", 1000, service="a")])
    profile = compile_preset("fullest-first")
    allowance = Allowance(lambda _: 1)
    one = CompositeScheduler(profile, Reservations(table), preemptor=Preemptor(table, profile, allowance))
    cycle = one.cycle([[ask(table, f"m{number}", 700, 5, group="g", least=2) for number in range(2)]], 0.0)
    assert (cycle.placed, allowance) == ([], {"default/a": 1})
