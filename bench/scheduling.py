"""`python -m bench.scheduling [--quick] [case...]`: measures scheduling decisions, with every node scored and
every placement verified."""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench import cases, machine
from bench.ratios import Peer, Ratios
from bench.report import Figure
from bench.verify import Placed, verify
from lattice.engine.decide import Decision, decide
from lattice.engine.decide_batch import can_batch, decide_batch
from lattice.engine.explain import all_rejections, as_json, summarize
from lattice.engine.plugin import Profile
from lattice.scheduling.cycle.profile import PRESETS, compile_profile
from lattice.scheduling.preemption.preemptor import Preemptor
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.workload_ask import Demands, WorkloadAsk

INCLUDED = """Deciding only, per CPU-second of one process: every filter and every score of the default profile `balanced` on every node,
no sampling; chosen, runner-up, the scores of both and the reason masks for each decision: of those decided together the masks of the
first, and for each of them in how many nodes each reason holds at its turn. Not included: API, queue, binding, storage. Each workload is
placed before the next is decided, and what that changes in the table's remembered answers is paid for by the next decision.
What is remembered of a shape is used: a known one is looked at only where a node changed; one with new amounts on every node, but the
answers of plugins that look at fixed facts (labels, taints, readiness) are shared with others alike. S4 tells these apart.
Nodes: 4 CPU, 32 GiB, 110 slots, three zones. 1,000 placements before measuring begins. Workloads: 100m, 500Mi,
of no service unless the case says so: only a service's replicas are spread softly, which costs more and has no aim.
Every placement is checked afterwards, in order, by a plain verifier that shares no code with the scheduler.
Peers: Kubernetes' scheduling cycle alone, without writes, measured on like hardware (two cores; it scores about 10 % of 5,000 nodes), or
figures that the peer publishes, of its own hardware and with its own storage: the ratio then compares different things and says so."""

CYCLE = "Kubernetes' cycle alone, like hardware"
FLOOR = "Kubernetes' published floor, its hardware, writes included"


@dataclass(frozen=True, slots=True)
class Scale:
    nodes: int = 5000
    warm: int = 1000
    workloads: int = 10_000
    growth: tuple[int, ...] = (1000, 10_000, 100_000)
    jobs: int = 1000
    samples: int = 300


QUICK = Scale(nodes=500, warm=100, workloads=1000, growth=(1000, 10_000), jobs=20, samples=100)


@dataclass
class Bench:
    ratios: Ratios
    scale: Scale
    profile: Profile

    def add(self, figure: Figure, peer: Peer | None = None) -> None:
        """Add a figure; peers were measured at full scale, so a small run shows no peer."""
        self.ratios.add(figure, peer if self.scale == Scale() else None)

    def warm_table(self) -> tuple[NodeTable, list[Placed]]:
        table = cases.node_table(self.scale.nodes)
        placed: list[Placed] = []
        place_all(cases.plain(table, self.scale.warm, "warm"), table, self.profile, placed)
        return table, placed


@dataclass
class Spent:
    deciding: float = 0.0
    placing: float = 0.0
    decisions: int = 0
    refused: int = 0

    @property
    def rate(self) -> float:
        return self.decisions / self.deciding

    @property
    def with_placing(self) -> float:
        return self.decisions / (self.deciding + self.placing)


def place_all(asks: Iterable[WorkloadAsk], table: NodeTable, profile: Profile, placed: list[Placed]) -> Spent:
    """Decide and place the workloads sequentially."""
    spent = Spent()
    clock = time.process_time
    for ask in asks:
        began = clock()
        decision = decide(ask, table, profile)
        decided = clock()
        if decision.chosen >= 0:
            table.assume(ask, decision.chosen)
            placed.append((ask, table.names[decision.chosen]))
        else:
            spent.refused += 1
        spent.placing += clock() - decided
        spent.deciding += decided - began
        spent.decisions += 1
    return spent


def place_equal(
    asks: list[WorkloadAsk], batch: int, table: NodeTable, profile: Profile, placed: list[Placed]
) -> Spent:
    """Decide equal workloads together, `batch` at a time."""
    spent = Spent()
    clock = time.process_time
    for start in range(0, len(asks), batch):
        equals = asks[start : start + batch]
        began = clock()
        assert can_batch(equals[0], profile, table)
        picks = decide_batch(equals[0], table, profile, len(equals))
        rejections = list(picks.rejection_counts())
        decided = clock()
        assert len(rejections) == len(picks)
        rows = picks.rows
        for ask, row in zip(equals, rows, strict=True):
            table.assume(ask, row)
        spent.placing += clock() - decided
        spent.deciding += decided - began
        spent.decisions += len(equals)
        placed.extend((ask, table.names[row]) for ask, row in zip(equals, rows, strict=True))
    return spent


def check(table: NodeTable, placed: list[Placed], expected: int) -> None:
    count = verify([info for info in table.node_infos if info is not None], placed)
    assert count == expected, f"{count:,} placed, not {expected:,}"


def basic(bench: Bench) -> None:
    table, placed = bench.warm_table()
    spent = place_all(cases.plain(table, bench.scale.workloads), table, bench.profile, placed)
    check(table, placed, bench.scale.warm + bench.scale.workloads)
    figure = Figure(
        "S1",
        "one at a time",
        spent.rate,
        "/CPU-s",
        at_least=18_000,
        note=f"{spent.with_placing:,.0f} with placing",
    )
    bench.add(figure, Peer(438, CYCLE))


def equal(bench: Bench) -> None:
    for batch, aim in ((1000, 100_000), (100, None)):
        table, placed = bench.warm_table()
        spent = place_equal(cases.plain(table, bench.scale.workloads), batch, table, bench.profile, placed)
        check(table, placed, bench.scale.warm + bench.scale.workloads)
        note = f"{spent.with_placing:,.0f} with placing"
        bench.add(
            Figure(
                "S1",
                f"equal ones together, {batch:,} at a time",
                spent.rate,
                "/CPU-s",
                at_least=aim,
                note=note,
            ),
            Peer(438, CYCLE),
        )


def different(bench: Bench) -> None:
    table, placed = bench.warm_table()
    spent = place_all(cases.different(table, bench.scale.workloads), table, bench.profile, placed)
    check(table, placed, bench.scale.warm + bench.scale.workloads)
    name = f"{bench.scale.workloads:,} different shapes"
    note = f"{spent.with_placing:,.0f} with placing"
    bench.add(Figure("S1", name, spent.rate, "/CPU-s", at_least=14_000, note=note), Peer(438, CYCLE))
    table, placed = cases.joined_table(bench.scale.nodes), []
    place_all(cases.plain(table, bench.scale.warm, "warm"), table, bench.profile, placed)
    assert not table.is_in_tie_order
    spent = place_all(cases.different(table, bench.scale.workloads), table, bench.profile, placed)
    check(table, placed, bench.scale.warm + bench.scale.workloads)
    name, note = f"{name}, nodes joined in any order", f"{spent.with_placing:,.0f} with placing"
    bench.add(Figure("S1", name, spent.rate, "/CPU-s", at_least=14_000, note=note), Peer(438, CYCLE))


def services(bench: Bench) -> None:
    """Replicas of services, which are spread softly over nodes and zones; the aims hold for workloads without
    a service."""
    makes: tuple[tuple[str, Callable[[NodeTable, int], list[WorkloadAsk]]], ...] = (
        ("one at a time, replicas of 1 service", lambda table, count: cases.of_services(table, count, 1)),
        (
            "one at a time, replicas of 100 services",
            lambda table, count: cases.of_services(table, count, 100),
        ),
        (f"{bench.scale.workloads:,} different shapes of a service", cases.different_of_a_service),
    )
    for name, make in makes:
        table, placed = bench.warm_table()
        spent = place_all(make(table, bench.scale.workloads), table, bench.profile, placed)
        check(table, placed, bench.scale.warm + bench.scale.workloads)
        note = f"{spent.with_placing:,.0f} with placing"
        bench.add(Figure("S1", name, spent.rate, "/CPU-s", note=note), Peer(438, CYCLE))
    for batch in (1000, 100):
        table, placed = bench.warm_table()
        spent = place_equal(
            cases.of_services(table, bench.scale.workloads, 1), batch, table, bench.profile, placed
        )
        check(table, placed, bench.scale.warm + bench.scale.workloads)
        name, note = (
            f"replicas of a service together, {batch:,} at a time",
            f"{spent.with_placing:,.0f} with placing",
        )
        bench.add(Figure("S1", name, spent.rate, "/CPU-s", note=note), Peer(438, CYCLE))


def restless(bench: Bench) -> None:
    """A node is cordoned or uncordoned before every decision; cached answers of the remaining nodes stay in
    use."""
    table, placed = bench.warm_table()
    asks, clock, spent = cases.plain(table, bench.scale.workloads), time.process_time, 0.0
    for number, ask in enumerate(asks):
        info = table.node_infos[number // 2 * 7 % table.count]
        assert info is not None
        began = clock()
        table.put_node(replace(info, is_cordoned=not info.is_cordoned))
        decision = decide(ask, table, bench.profile)
        spent += clock() - began
        assert not table.column("cordoned")[decision.chosen]
        table.assume(ask, decision.chosen)
        placed.append((ask, decision.name))
    _same_from_scratch(decide(asks[-1], table, bench.profile))
    for info in [node for node in table.node_infos if node is not None and node.is_cordoned]:
        # The verifier knows the final nodes only.
        table.put_node(replace(info, is_cordoned=False))
    check(table, placed, bench.scale.warm + bench.scale.workloads)
    name = "a node changes before each decision"
    bench.add(
        Figure("S1", name, len(asks) / spent, "/CPU-s", at_least=10_000, note="the change included"),
        Peer(438, CYCLE),
    )


def constrained(bench: Bench) -> None:
    kinds: tuple[tuple[str, Callable[[NodeTable, int], Iterable[WorkloadAsk]], Peer], ...] = (
        ("hard zone spread", cases.spread, Peer(267, CYCLE)),
        ("required anti-affinity, per node", cases.apart, Peer(346, CYCLE)),
        ("required affinity, per zone", cases.together, Peer(70, FLOOR)),
    )
    for name, make, peer in kinds:
        table, placed = bench.warm_table()
        count = min(bench.scale.workloads, bench.scale.nodes * cases.GROUPS)
        spent = place_all(list(make(table, count)), table, bench.profile, placed)
        check(table, placed, bench.scale.warm + count)
        bench.add(
            Figure(
                "S2",
                name,
                spent.rate,
                "/CPU-s",
                at_least=8000,
                note=f"ten groups; {spent.with_placing:,.0f} with placing",
            ),
            peer,
        )


def mixed(bench: Bench) -> None:
    table, placed = bench.warm_table()
    spent = place_all(list(cases.mixed(table, bench.scale.workloads)), table, bench.profile, placed)
    check(table, placed, bench.scale.warm + bench.scale.workloads)
    note = f"{spent.refused:,} of {spent.decisions:,} refused"
    bench.add(
        Figure(
            "S2", "mixed with unschedulable important ones", spent.rate, "/CPU-s", at_least=8000, note=note
        ),
        Peer(600, FLOOR),
    )


def preemption(bench: Bench) -> None:
    """Nodes full of low-priority workloads, four per node; a high-priority workload needs three victims."""
    table, clock = cases.node_table(bench.scale.nodes), time.process_time
    low, high = (
        Demands(requests=(("cpu", 900), ("memory", 500 * cases.MIB))),
        Demands(requests=(("cpu", 3000), ("memory", 500 * cases.MIB))),
    )
    for row in range(table.count):
        for number in range(4):
            table.assume(table.make_ask(f"default/low-{row}-{number}", low, priority=0), row)
    preemptor = Preemptor(table, bench.profile)
    count, spent, victim_count = bench.scale.workloads // 10, 0.0, 0
    for number in range(count):
        ask = table.make_ask(f"default/high-{number}", high, priority=100)
        began = clock()
        decision = decide(ask, table, bench.profile)
        assert not decision.fits
        preemption = preemptor.find(ask, decision)
        spent += clock() - began
        assert preemption is not None
        assert all(victim.ask.priority < ask.priority for victim in preemption.victims)
        for victim in preemption.victims:
            table.forget(victim.ask.name)
        table.assume(ask, preemption.row)
        victim_count += len(preemption.victims)
    assert victim_count == 3 * count, f"{victim_count:,} victims for {count:,}, three each are enough"
    check(
        table,
        [(placement.ask, table.names[placement.row]) for placement in table.placements.values()],
        4 * table.count - victim_count + count,
    )
    peer = Peer(17, "Kubernetes, like hardware, 1,000 nodes, writes included")
    bench.add(
        Figure("S2", "preemption", count / spent, "/CPU-s", at_least=500, note="three victims each"), peer
    )


def million(bench: Bench) -> None:
    scale = bench.scale
    command = [sys.executable, "-m", "bench.million", "--nodes", str(scale.nodes), "--jobs", str(scale.jobs)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    placed, name = int(result["placed"]), f"{int(result['placed']):,} placements"
    note = f"making the asks, deciding ({result['deciding']:.1f} s) and placing"
    bench.add(Figure("S3", name, result["seconds"], "CPU-s", at_most=40, note=note))
    published = Peer(3750, "Nomad's C1M, five servers, writes included")
    bench.add(Figure("S3", "placements", placed / result["seconds"], "/CPU-s"), published)
    bench.add(Figure("S3", "rate of the last tenth ÷ the first", result["last_to_first"], "", at_least=0.7))
    bench.add(Figure("S3", "peak memory", result["peak"] / cases.GIB, "GiB", at_most=4))


def growth(bench: Bench) -> None:
    """Nodes that are 80 % full on average; cached answers save work, so three kinds of shapes are measured."""
    medians: dict[str, list[float]] = {}
    for nodes in bench.scale.growth:
        table = cases.node_table(nodes)
        cases.fill(table, 0.8)
        kinds = {
            "known shape": cases.plain(table, bench.scale.samples),
            "new amounts": cases.different(table, bench.scale.samples),
            "new amounts and new label demand": cases.choosy(table, bench.scale.samples),
        }
        for kind, asks in kinds.items():
            durations = sorted(_decision_times(asks, table, bench.profile))
            p50, p99 = durations[len(durations) // 2], durations[int(len(durations) * 0.99)]
            medians.setdefault(kind, []).append(p50)
            aim = 10.0 if nodes == 100_000 else None
            bench.add(
                Figure(
                    "S4",
                    f"{nodes:,} nodes, {kind}, p99",
                    1000 * p99,
                    "ms",
                    at_most=aim,
                    note=f"p50 {1000 * p50:.3f} ms",
                )
            )
    times = bench.scale.growth[-1] / bench.scale.growth[0]
    for kind, values in medians.items():
        name = f"p50 grew by this ÷ {times:.0f} × the nodes, {kind}"
        bench.add(Figure("S4", name, values[-1] / values[0] / times, "", at_most=1.0))


def _decision_times(asks: list[WorkloadAsk], table: NodeTable, profile: Profile) -> list[float]:
    """CPU seconds per decision without the first tenth, which warms up; the last decision is repeated without
    caches."""
    durations = []
    for ask in asks:
        began = time.process_time()
        decision = decide(ask, table, profile)
        durations.append(time.process_time() - began)
        assert len(decision.totals) == table.count, "every node is scored"
        if ask is asks[-1]:
            _same_from_scratch(decision)
        if decision.fits:
            table.assume(ask, decision.chosen)
    return durations[len(durations) // 10 :]


def _same_from_scratch(decision: Decision) -> None:
    table, cached = decision.table, decision.totals.copy()
    table.shapes_seen_once.clear()
    table.shape_caches.clear()
    table.fixed_caches.clear()
    recomputed = decide(decision.ask, table, decision.profile)
    assert recomputed.chosen == decision.chosen
    assert np.array_equal(recomputed.totals, cached), "what is remembered is what would be found anew"


def explaining(bench: Bench) -> None:
    table, _ = bench.warm_table()
    for name in table.names[: table.count // 3]:
        table.set(table.row_of[name], "cordoned", True)
    crowd = Demands(requests=cases.SMALL, labels=cases.CROWD)
    for row in range(table.count):
        # A node has fewer workloads, so that the spread rule rejects all further nodes.
        for number in range(1 + (row < table.count - 1)):
            table.assume(table.make_ask(f"default/crowd-{row}-{number}", crowd), row)
    for reason, demands in cases.REFUSED.items():
        _explain(bench, reason, decide(table.make_ask("default/refused", demands), table, bench.profile))


def _explain(bench: Bench, reason: str, decision: Decision) -> None:
    assert summarize(decision).startswith(f"0 of {decision.table.count:,} nodes: "), summarize(decision)
    assert len(dict(all_rejections(decision))) == decision.table.count
    summary_s, listed_s = (
        _median(lambda: (summarize(decision), as_json(decision))),
        _median(lambda: as_json(decision, with_rejections=True)),
    )
    bench.add(
        Figure("explain", f"{reason}: sentence and JSON with counts", 1000 * summary_s, "ms", at_most=5)
    )
    bench.add(
        Figure("explain", f"{reason}: every node with need, have, missing", 1000 * listed_s, "ms", at_most=5)
    )


def _median(make: Callable[[], object], times: int = 21) -> float:
    durations = []
    for _ in range(times):
        began = time.process_time()
        make()
        durations.append(time.process_time() - began)
    return sorted(durations)[times // 2]


CASES: dict[str, Callable[[Bench], None]] = {
    "basic": basic,
    "equal": equal,
    "different": different,
    "services": services,
    "restless": restless,
    "constrained": constrained,
    "mixed": mixed,
    "preemption": preemption,
    "million": million,
    "growth": growth,
    "explain": explaining,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.scheduling", description=__doc__)
    parser.add_argument(
        "cases", nargs="*", metavar="case", help=f"some of {', '.join(CASES)}; all if none is named"
    )
    parser.add_argument(
        "--quick", action="store_true", help="everything small, to see that it runs; nothing is kept"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.cases if name not in CASES]:
        parser.error(f"no such case: {unknown[0]}; there are {', '.join(CASES)}")
    bench = Bench(
        Ratios(machine.facts()), QUICK if options.quick else Scale(), compile_profile(PRESETS["balanced"])
    )
    print(
        "; ".join(f"{fact} {value}" for fact, value in bench.ratios.machine.items()), INCLUDED, "", sep="\n"
    )
    for name in options.cases or CASES:
        gc.collect()
        CASES[name](bench)
    if not options.quick and not options.cases:
        bench.ratios.save("scheduling", INCLUDED)
    missed = bench.ratios.missed
    print(f"\n{len(missed)} aims missed" if missed else "\nevery aim reached")
    for figure in missed:
        print(f"not reached: {figure.subject}, {figure.what}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
