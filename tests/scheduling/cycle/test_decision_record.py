"""Tests of decision records: the top three candidates, counts per reason, the shortfall of the nearest node,
within 2 KB."""

from collections.abc import Sequence

import pytest
from build.node_tables import a_node_info, ask, nodes, workload_demands
from hypothesis import given
from hypothesis import strategies as st

from lattice.engine.batch_result import BatchResult
from lattice.engine.decide import Decision, decide
from lattice.kinds.meta.json_body import encode
from lattice.scheduling.cycle.cycle import CompositeScheduler
from lattice.scheduling.cycle.decision_record import (
    MAX_RECORD_BYTES,
    DecisionRecord,
    chosen_records,
    input_digest,
    rejected_record,
)
from lattice.scheduling.cycle.profile import compile_profile, preset
from lattice.scheduling.cycle.reservations import Reservations
from lattice.scheduling.table.workload_ask import WorkloadAsk

PROFILE = preset("balanced")
COMPILED = compile_profile(PROFILE)


def test_chosen_record_has_top_three_and_rejection_counts() -> None:
    table = nodes(*(a_node_info(f"n{number}", {"cpu": number, "memory": "16Gi"}) for number in range(6)))
    (kept,) = chosen_records(decide(ask(table, workload_demands({"cpu": 2})), table, COMPILED), PROFILE, 7)
    assert len(kept["best"]) == 3
    assert list(kept["best"].values()) == sorted(kept["best"].values(), reverse=True)
    assert kept["reasons"] == {"without 2 cpu free": 2}
    assert (kept["profile"], kept["revision"]) == ("balanced", 7)


def test_batch_records_equal_single_records() -> None:
    kept: dict[str, DecisionRecord] = {}

    def tell(asks: Sequence[WorkloadAsk], found: Decision | BatchResult) -> None:
        kept.update(zip((ask.name for ask in asks), chosen_records(found, PROFILE, 7), strict=False))

    together, alone = (
        nodes(*(a_node_info(f"n{number}", {"cpu": 4, "memory": "16Gi"}) for number in range(6)))
        for _ in range(2)
    )
    run = [ask(together, workload_demands({"cpu": 1}), f"default/w{number}") for number in range(30)]
    cycle = CompositeScheduler(COMPILED, Reservations(together), on_decided=tell).cycle([run], 0.0)
    assert len(cycle.scheduled) == 24
    assert len(kept) == 24
    for placed in cycle.scheduled:
        one = ask(alone, workload_demands({"cpu": 1}), placed.ask.name)
        decision = decide(one, alone, COMPILED)
        (expected,) = chosen_records(decision, PROFILE, 7)
        best = dict(list(expected["best"].items())[:2])
        assert kept[placed.ask.name] == {
            **expected,
            "best": pytest.approx(best, abs=0.02),
            "parts": pytest.approx(expected["parts"], abs=0.2),
        }
        assert next(iter(kept[placed.ask.name]["best"])) == placed.node == decision.name
        assert placed.score == pytest.approx(expected["best"][placed.node], abs=0.02)
        alone.assume(one, decision.chosen)


def test_rejected_record_names_nearest_node_and_shortfall() -> None:
    table = nodes(
        a_node_info("far", {"cpu": 1, "memory": "1Gi"}, is_cordoned=True),
        a_node_info("near", {"cpu": 1, "memory": "16Gi"}),
    )
    kept = rejected_record(
        decide(ask(table, workload_demands({"cpu": 2, "memory": "2Gi"})), table, COMPILED), PROFILE, 1
    )
    assert kept["nearest"] == {
        "node": "near",
        "short": [{"what": "cpu", "need": "2", "have": "1", "missing": "1"}],
    }


def test_rejected_record_without_nodes_has_no_nearest() -> None:
    table = nodes()
    assert "nearest" not in rejected_record(decide(ask(table), table, COMPILED), PROFILE, 1)


def test_input_digest_ignores_workload_name() -> None:
    table = nodes(a_node_info())
    same, other = ask(table, name="default/a"), ask(table, name="default/b")
    assert input_digest(same, PROFILE) == input_digest(other, PROFILE)
    assert input_digest(same, PROFILE) != input_digest(ask(table, workload_demands({"cpu": 3})), PROFILE)
    assert input_digest(same, PROFILE) != input_digest(same, preset("fullest-first"))


@given(st.lists(st.text("ä€x", min_size=1, max_size=1000), unique=True, min_size=1, max_size=6))
def test_record_stays_within_size_limit(names: list[str]) -> None:
    table = nodes(*(a_node_info(name) for name in names))
    fits, fails = (decide(ask(table, workload_demands({"cpu": cpu})), table, COMPILED) for cpu in (1, 99))
    assert len(encode(next(chosen_records(fits, PROFILE, 1)))) <= MAX_RECORD_BYTES
    assert len(encode(rejected_record(fails, PROFILE, 1))) <= MAX_RECORD_BYTES
