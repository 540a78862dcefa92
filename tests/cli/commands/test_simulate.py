"""`lattice simulate` as a user runs it: manifests in, placements and reasons out."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from build.manifests import a_node_manifest, a_workload_manifest, changed, in_lines, in_yaml

from lattice.cli.commands.simulate import PROGRESS_MIN_WORKLOADS
from lattice.cli.output.simulation_report import format_amount, report_lines
from lattice.scheduling.cycle.profile import FILTERS, PRESETS, SCORES
from lattice.scheduling.cycle.tie_break import TieBreaker
from lattice.scheduling.offline.simulate import SimulationReport, UnschedulableGroup


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            "all.yaml", in_yaml(a_node_manifest(), a_workload_manifest()), id="YAML of several documents"
        ),
        pytest.param("all.jsonl", in_lines(a_node_manifest(), a_workload_manifest()), id="an object a line"),
        pytest.param(
            "all.json",
            in_lines(a_node_manifest(), a_workload_manifest()),
            id="an object a line in a .json file",
        ),
        pytest.param(
            "all.json",
            json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": [a_node_manifest(), a_workload_manifest()]},
                indent=2,
            ),
            id="a JSON list",
        ),
        pytest.param(
            "all.yaml",
            json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": [a_node_manifest(), a_workload_manifest()]}
            ),
            id="a list in YAML",
        ),
    ],
)
def test_every_manifest_format_is_read(lattice, write, name, text):
    ran = lattice("simulate", "-f", write(name, text))
    assert ran.code == 0, ran.err
    assert "1 node: 1 placed, 0 not placed\n" in ran.out
    assert "shop/w1    n1\n" in ran.out
    assert "1 decision in " in ran.err


def test_folders_are_read_recursively_only_with_flag(lattice, write, tmp_path):
    write("nodes.yaml", in_yaml(a_node_manifest()))
    write("workloads.jsonl", in_lines(a_workload_manifest("a"), a_workload_manifest("b")))
    (tmp_path / "deeper").mkdir()
    write("deeper/more.json", json.dumps(a_workload_manifest("c")))
    assert "1 node: 2 placed" in lattice("simulate", "-f", ".").out
    assert "1 node: 3 placed" in lattice("simulate", "-R", "-f", ".").out


def test_standard_input_is_read(lattice, write, monkeypatch):
    for text in (
        in_yaml(a_node_manifest(), a_workload_manifest()),
        in_lines(a_node_manifest(), a_workload_manifest()),
    ):
        with open(write("in", text)) as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert "1 node: 1 placed" in lattice("simulate", "-f", "-").out


def test_unrelated_kinds_are_ignored_and_counted(lattice, write):
    spec = {"provider": {"type": "aws", "region": "us-east-1"}, "capacity": {"maxNodes": 3}}
    pool = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticePool",
        "metadata": {"name": "p"},
        "spec": spec,
    }
    for name, text in (
        ("a.yaml", in_yaml(a_node_manifest(), pool)),
        ("a.jsonl", in_lines(a_node_manifest(), pool)),
    ):
        ran = lattice("simulate", "-f", write(name, text))
        assert (ran.code, ran.err.splitlines()[0]) == (
            0,
            "ignored 1 LatticePool: simulate uses only LatticeNode and LatticeWorkload",
        )


def test_unplaced_workloads_show_reasons_and_optional_exit_code(lattice, write):
    file = write(
        "a.yaml", in_yaml(a_node_manifest(), *(a_workload_manifest(f"w{i}", cpu="3") for i in range(6)))
    )
    ran = lattice("simulate", "-f", file)
    assert ran.code == 0
    assert "1 node: 1 placed, 5 not placed" in ran.out
    assert "5            shop/w1, shop/w2, shop/w3, …   0 of 1 node: 1 without 3 cpu free" in ran.out
    assert lattice("simulate", "-f", file, "--exit-code").code == 1
    assert "shop/w5" in lattice("simulate", "-f", file, "-o", "wide").out


def test_table_shows_utilisation(lattice, write):
    ran = lattice(
        "simulate",
        "-f",
        write("a.yaml", in_yaml(a_node_manifest("n1"), a_node_manifest("n2"), a_workload_manifest(cpu="2"))),
    )
    line = next(line for line in ran.out.splitlines() if line.startswith("cpu "))
    assert line.split() == ["cpu", "8", "0", "(0.0%)", "2", "(25.0%)", "25.0%", "50.0%"]


def test_wide_table_shows_qos_class_and_node_utilisation(lattice, write):
    limited = a_workload_manifest("g", cpu="2", limits={"cpu": "2", "memory": "1Gi"})
    out = lattice(
        "simulate",
        "-f",
        write("a.yaml", in_yaml(a_node_manifest("n1"), a_node_manifest("n2"), limited)),
        "-o",
        "wide",
    ).out
    assert "QoS classes: 1 Guaranteed\n" in out
    assert ["shop/g", "Guaranteed"] in [line.split()[::2] for line in out.splitlines()]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("n")] == ["50.0%", "0.0%"]


def test_many_placements_are_counted_per_node(lattice, write):
    file = write(
        "a.jsonl",
        in_lines(
            a_node_manifest("n1"),
            a_node_manifest("n2"),
            *(a_workload_manifest(f"w{i}", cpu="10m") for i in range(60)),
        ),
    )
    assert "NODE   PLACED\n" in lattice("simulate", "-f", file).out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("shop/w") == 60


def test_many_reasons_are_cut_unless_wide(lattice, write):
    labels = [{"nodeSelector": {"rack": f"r{i}"}} for i in range(60)]
    file = write(
        "a.jsonl",
        in_lines(
            a_node_manifest(),
            *(a_workload_manifest(f"w{i}", constraints=each) for i, each in enumerate(labels)),
        ),
    )
    assert "and 10 more workloads; -o wide lists all\n" in lattice("simulate", "-f", file).out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("shop/w") == 60


def test_json_output_is_complete(lattice, write):
    file = write(
        "a.yaml", in_yaml(a_node_manifest(), a_workload_manifest("a"), a_workload_manifest("b", cpu="9"))
    )
    value = json.loads(
        lattice("simulate", "-f", file, "-o", "json", "--seed", "7", "--explain", "shop/b").out
    )
    assert value["placements"] == {"shop/a": "n1"}
    assert value["unplaced"] == [
        {"count": 1, "reason": "0 of 1 node: 1 without 9 cpu free", "workloads": ["shop/b"]}
    ]
    assert (value["profile"], value["seed"], value["nodes"], value["placed"], value["notPlaced"]) == (
        "balanced",
        7,
        1,
        1,
        1,
    )
    assert value["utilisation"]["cpu"]["after"] == 1000
    assert value["qos"] == {"shop/a": "Burstable", "shop/b": "Burstable"}
    assert value["fullness"] == {"n1": 0.25}
    assert value["explained"]["refused"] == {
        "n1": [{"what": "cpu", "need": "9", "have": "3", "missing": "6"}]
    }


def test_explain_shows_scores_and_every_rejection(lattice, write):
    file = write(
        "a.yaml",
        in_yaml(
            a_node_manifest("n1"),
            a_node_manifest("n2", cpu=100),
            a_node_manifest("n3", unschedulable=True),
            a_workload_manifest(namespace="default"),
        ),
    )
    out = lattice("simulate", "-f", file, "--explain", "w1").out
    assert "default/w1: n1: best of 1 that fit, of 3 nodes (" in out
    assert "NODE   SCORE   BALANCEDRESOURCES" in out
    assert "n2         cpu: need 1, have 100m, missing 900m\n" in out
    assert "\nn3        " in out


def test_the_same_input_gives_the_same_output(lattice, write):
    file = write(
        "a.jsonl",
        in_lines(
            *(a_node_manifest(f"n{i}") for i in range(20)), *(a_workload_manifest(f"w{i}") for i in range(15))
        ),
    )
    first, second, other = (lattice("simulate", "-f", file, "--seed", seed).out for seed in ("1", "1", "2"))
    assert first == second
    assert first != other


def test_equal_names_in_two_namespaces_are_distinct(lattice, write):
    file = write(
        "a.yaml",
        in_yaml(a_node_manifest(), a_workload_manifest(namespace="a"), a_workload_manifest(namespace="b")),
    )
    assert "2 placed" in lattice("simulate", "-f", file).out


def test_gangs_and_priorities_are_honoured(lattice, write):
    gang = [a_workload_manifest(f"g{i}", cpu="2", group={"name": "g", "minMember": 3}) for i in range(3)]
    bound = {**a_workload_manifest("old", cpu="4"), "status": {"binding": {"node": "n1"}}}
    value = json.loads(
        lattice("simulate", "-f", write("a.yaml", in_yaml(a_node_manifest(), *gang)), "-o", "json").out
    )
    assert value["placements"] == {}
    assert "minMember is 3" in value["unplaced"][0]["reason"]
    file = write("b.yaml", in_yaml(a_node_manifest(), bound, a_workload_manifest("new", cpu="2", priority=5)))
    value = json.loads(lattice("simulate", "-f", file, "-o", "json").out)
    assert (value["placements"], value["displaced"]) == (
        {"shop/new": "n1"},
        {"shop/old": {"node": "n1", "by": "shop/new"}},
    )
    assert "shop/old    n1       shop/new   <none>\n" in lattice("simulate", "-f", file).out


def test_reasons_beyond_the_list_are_summed_by_kind(lattice, write):
    file = write(
        "a.jsonl",
        in_lines(a_node_manifest(), *(a_workload_manifest(f"w{i}", cpu=f"{5001 + i}m") for i in range(60))),
    )
    out = lattice("simulate", "-f", file).out
    assert "1            shop/w49                          0 of 1 node: 1 without 5050m cpu free\n" in out
    assert "10           shop/w50, shop/w51, shop/w52, …   without … cpu free\n" in out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("0 of 1 node: 1 without 50") == 60


def test_only_equal_reasons_share_a_line(lattice, write):
    out = lattice(
        "simulate",
        "-f",
        write(
            "a.jsonl",
            in_lines(
                a_node_manifest(), *(a_workload_manifest(f"w{i}", cpu=cpu) for i, cpu in enumerate("966"))
            ),
        ),
    ).out
    assert "2            shop/w1, shop/w2   0 of 1 node: 1 without 6 cpu free\n" in out
    assert "1            shop/w0            0 of 1 node: 1 without 9 cpu free\n" in out


def test_equal_runs_give_equal_json(lattice, write):
    file = write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest()))
    first, second = (lattice("simulate", "-f", file, "-o", "json").out for _ in range(2))
    assert first == second
    assert [name for name in json.loads(first) if "seconds" in name] == []


def test_profile_may_set_the_seed(lattice, write):
    file = write(
        "a.jsonl",
        in_lines(
            *(a_node_manifest(f"n{i}") for i in range(20)), *(a_workload_manifest(f"w{i}") for i in range(15))
        ),
    )
    mine = write("mine.yaml", "scores: {BinPacking: 1}\nseed: 5\ntieBreaker: random\n")
    found = [
        json.loads(lattice("simulate", "-f", file, "--profile", mine, "-o", "json", *more).out)
        for more in ([], ["--seed", "5"])
    ]
    assert found[0] == found[1]
    assert found[0]["seed"] == 5
    other = json.loads(lattice("simulate", "-f", file, "--profile", mine, "-o", "json", "--seed", "0").out)
    assert other["seed"] == 0
    assert other["placements"] != found[0]["placements"]


def test_inconsistent_input_is_a_warning_with_its_line(lattice, write):
    node = a_node_manifest()
    node["status"]["gpus"] = [{"model": "t4"}]
    bound = [
        {
            **a_workload_manifest(f"b{i}", requests={"cpu": "3", "gpu": 1}),
            "status": {"binding": {"node": "n1"}},
        }
        for i in range(2)
    ]
    cpu = [{**a_workload_manifest("b2", cpu="3"), "status": {"binding": {"node": "n1"}}}]
    counted = changed(a_node_manifest("n2"), "status.capacity", {"cpu": 1, "gpu": 1000})
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(node, *bound, *cpu, counted)))
    assert ran.code == 0, ran.err
    assert (
        "Warning: a.jsonl:3: workload shop/b1 is bound to node n1, which cannot hold the requested 1 gpu"
        in ran.err
    )
    assert (
        "Warning: a.jsonl:1: node n1 is overcommitted: its bound workloads request 6 of 4 cpu; too little cpu slows the workloads down\n"
        in ran.err
    )
    assert (
        "Warning: a.jsonl:5: node n2 states 1 gpu, but lists no GPU, so workloads get none: list every GPU with its model under status.gpus"
        in ran.err
    )


def test_progress_is_shown_on_a_terminal_only(lattice, write):
    file = write(
        "a.jsonl",
        in_lines(
            a_node_manifest(cpu=10**7),
            *(a_workload_manifest(f"w{i}", cpu="1m") for i in range(PROGRESS_MIN_WORKLOADS)),
        ),
    )
    command = [sys.executable, "-m", "lattice.cli.main", "simulate", "-f", file]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
        os.close(theirs)
        assert b"workloads decided" in screen.read(1 << 16)
    assert b"workloads decided" not in ran.stdout
    assert "workloads decided" not in lattice("simulate", "-f", file).err


def test_a_json_list_needs_no_kind(lattice, write):
    for text in (
        json.dumps([a_node_manifest(), a_workload_manifest()]),
        json.dumps([a_node_manifest(), a_workload_manifest()], indent=2),
    ):
        assert "1 node: 1 placed" in lattice("simulate", "-f", write("all.json", text)).out


def test_explain_of_a_gang_member_counts_the_other_members(lattice, write):
    gang = [a_workload_manifest(f"g{i}", cpu="2", group={"name": "g", "minMember": 3}) for i in range(3)]
    out = lattice(
        "simulate", "-f", write("a.yaml", in_yaml(a_node_manifest(), *gang)), "--explain", "shop/g0"
    ).out
    assert "nodes are shown with the 2 other members of the group that fit in place\n" in out
    assert "n1         cpu: need 2, have 0, missing 2\n" in out


def test_reason_is_wrapped_to_the_terminal():
    report = SimulationReport(
        1,
        0,
        0,
        {},
        (UnschedulableGroup(("shop/a",), "0 of 9 nodes: " + "; ".join(["3 without 1 cpu free"] * 3)),),
        {},
        (),
        0.0,
    )
    told = list(report_lines(report, max_width=60))
    assert max(map(len, told)) <= 60
    assert told[-1].strip() == "cpu free"


def test_sums_are_written_as_numbers():
    assert [format_amount("cpu", 30_286_750), format_amount("gpu", 500), format_amount("fpga", 12345)] == [
        "30,286.75",
        "0.5",
        "12,345",
    ]


def test_guide_names_every_option_and_output_field(lattice, write):
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "simulate.md").read_text()
    file = write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest()))
    found = json.loads(lattice("simulate", "-f", file, "-o", "json", "--explain", "shop/w1").out)
    for name in (*PRESETS, *FILTERS, *SCORES, *TieBreaker, *found, *found["explained"]):
        assert f"`{name}`" in guide, name
    (profile,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert lattice("simulate", "-f", file, "--profile", write("night.yaml", profile)).code == 0
