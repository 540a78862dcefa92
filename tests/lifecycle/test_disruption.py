"""Tests of the disruption budget: read once per service, decremented per eviction, restored when a preemption
fails."""

import pytest
from build.small_clusters import ask, nodes, put

from lattice.lifecycle.disruption import DisruptionBudget, ServiceAvailability, disruptions_allowed
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.profile import compile_preset
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.preemption.preemptor import Preemptor


@pytest.mark.parametrize(
    ("found", "spare"),
    [
        pytest.param(ServiceAvailability(3, 2), 1, id="one more is ready than must be"),
        pytest.param(ServiceAvailability(2, 2), 0, id="no more are"),
        pytest.param(ServiceAvailability(1, 2), 0, id="fewer are: it gets no worse"),
        pytest.param(ServiceAvailability(3, 2, is_changing=True), 0, id="an update has one more for itself"),
    ],
)
def test_disruptions_allowed(found: ServiceAvailability, spare: int) -> None:
    assert disruptions_allowed(found) == spare


def test_disruption_budget_reads_service_once_until_cleared() -> None:
    asked: list[str] = []
    found = DisruptionBudget(
        lambda service: asked.append(service) or (None if service == "default/free" else 2)
    )
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


def test_failed_gang_preemption_uses_no_disruption_budget() -> None:
    table = nodes(1000, 1000)
    for number in range(2):
        put(table, f"n{number}", [ask(table, f"low{number}", 1000, service="a")])
    profile = compile_preset("fullest-first")
    allowance = DisruptionBudget(lambda _: 1)
    one = CompositeScheduler(profile, Reservations(table), preemptor=Preemptor(table, profile, allowance))
    cycle = one.cycle([[ask(table, f"m{number}", 700, 5, group="g", least=2) for number in range(2)]], 0.0)
    assert (cycle.scheduled, allowance) == ([], {"default/a": 1})
