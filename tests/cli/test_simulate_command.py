"""`lattice simulate` as a user runs it: manifests in, placements and reasons out, every mistake with its line."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lattice.cli.forecast import amount, lines
from lattice.cli.simulate import LONG
from lattice.scheduling.profile import FILTERS, PRESETS, SCORES
from lattice.scheduling.select import TieBreaker
from lattice.scheduling.simulate import Report, Unplaced

GIB = 1 << 30


def a_node(name="n1", cpu=4000, memory=32 * GIB, **spec):
    head = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeNode", "metadata": {"name": name}}
    return {**head, "spec": spec, "status": {"capacity": {"cpu": cpu, "memory": memory}}}


def a_workload(name="w1", cpu="1", namespace="shop", labels=None, **spec):
    head = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticeWorkload"}
    metadata = {"name": name, "namespace": namespace, "labels": labels or {}}
    return {
        **head,
        "metadata": metadata,
        "spec": {"containers": {"main": {"command": ["run"]}}, "requests": {"cpu": cpu, "memory": "1Gi"}, **spec},
    }


def in_yaml(*objects):
    return yaml.safe_dump_all(objects)


def in_lines(*objects):
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, text):
        (tmp_path / name).write_text(text)
        return name

    return written


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param("all.yaml", in_yaml(a_node(), a_workload()), id="YAML of several documents"),
        pytest.param("all.jsonl", in_lines(a_node(), a_workload()), id="an object a line"),
        pytest.param("all.json", in_lines(a_node(), a_workload()), id="an object a line in a .json file"),
        pytest.param(
            "all.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [a_node(), a_workload()]}, indent=2), id="a JSON list"
        ),
        pytest.param("all.yaml", json.dumps({"apiVersion": "v1", "kind": "List", "items": [a_node(), a_workload()]}), id="a list in YAML"),
    ],
)
def test_every_form_of_manifest_is_read(lattice, write, name, text):
    ran = lattice("simulate", "-f", write(name, text))
    assert ran.code == 0, ran.err
    assert "1 node: 1 placed, 0 not placed\n" in ran.out
    assert "shop/w1    n1\n" in ran.out
    assert "decided 1 in " in ran.err


def test_folders_are_read_whole(lattice, write, tmp_path):
    write("nodes.yaml", in_yaml(a_node()))
    write("workloads.jsonl", in_lines(a_workload("a"), a_workload("b")))
    (tmp_path / "deeper").mkdir()
    write("deeper/more.json", json.dumps(a_workload("c")))
    assert "1 node: 2 placed" in lattice("simulate", "-f", ".").out
    assert "1 node: 3 placed" in lattice("simulate", "-R", "-f", ".").out


def test_standard_input_is_read(lattice, write, monkeypatch):
    for text in (in_yaml(a_node(), a_workload()), in_lines(a_node(), a_workload())):
        with open(write("in", text)) as file:
            monkeypatch.setattr(sys, "stdin", file)
            assert "1 node: 1 placed" in lattice("simulate", "-f", "-").out


def test_other_kinds_are_ignored_and_counted(lattice, write):
    spec = {"provider": {"type": "aws", "region": "us-east-1"}, "capacity": {"maxNodes": 3}}
    pool = {"apiVersion": "lattice.dev/v1alpha1", "kind": "LatticePool", "metadata": {"name": "p"}, "spec": spec}
    for name, text in (("a.yaml", in_yaml(a_node(), pool)), ("a.jsonl", in_lines(a_node(), pool))):
        ran = lattice("simulate", "-f", write(name, text))
        assert (ran.code, ran.err.splitlines()[0]) == (0, "ignored 1 LatticePool: only LatticeNode and LatticeWorkload matter here")


def test_what_is_not_placed_says_why_and_ends_with_1_only_if_asked(lattice, write):
    file = write("a.yaml", in_yaml(a_node(), *(a_workload(f"w{i}", cpu="3") for i in range(6))))
    ran = lattice("simulate", "-f", file)
    assert ran.code == 0
    assert "1 node: 1 placed, 5 not placed" in ran.out
    assert "5            shop/w1, shop/w2, shop/w3, …   0 of 1 node: 1 without 3 cpu free" in ran.out
    assert lattice("simulate", "-f", file, "--exit-code").code == 1
    assert "shop/w5" in lattice("simulate", "-f", file, "-o", "wide").out


def test_the_table_shows_how_full_it_gets(lattice, write):
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node("n1"), a_node("n2"), a_workload(cpu="2"))))
    line = next(line for line in ran.out.splitlines() if line.startswith("cpu "))
    assert line.split() == ["cpu", "8", "0", "(0.0%)", "2", "(25.0%)", "25.0%", "50.0%"]


def test_the_wide_table_shows_the_class_of_each_workload_and_how_full_each_node_gets(lattice, write):
    limited = a_workload("g", cpu="2", limits={"cpu": "2", "memory": "1Gi"})
    out = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node("n1"), a_node("n2"), limited)), "-o", "wide").out
    assert "class of service: 1 Guaranteed\n" in out
    assert ["shop/g", "Guaranteed"] in [line.split()[::2] for line in out.splitlines()]
    assert [line.split()[1] for line in out.splitlines() if line.startswith("n")] == ["50.0%", "0.0%"]


def test_many_placements_are_counted_per_node(lattice, write):
    file = write("a.jsonl", in_lines(a_node("n1"), a_node("n2"), *(a_workload(f"w{i}", cpu="10m") for i in range(60))))
    assert "NODE   PLACED\n" in lattice("simulate", "-f", file).out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("shop/w") == 60


def test_many_reasons_are_cut_short_unless_all_are_asked_for(lattice, write):
    labels = [{"nodeSelector": {"rack": f"r{i}"}} for i in range(60)]
    file = write("a.jsonl", in_lines(a_node(), *(a_workload(f"w{i}", constraints=each) for i, each in enumerate(labels))))
    assert "and 10 more workloads; -o wide lists all\n" in lattice("simulate", "-f", file).out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("shop/w") == 60


def test_json_has_everything(lattice, write):
    file = write("a.yaml", in_yaml(a_node(), a_workload("a"), a_workload("b", cpu="9")))
    value = json.loads(lattice("simulate", "-f", file, "-o", "json", "--seed", "7", "--explain", "shop/b").out)
    assert value["placements"] == {"shop/a": "n1"}
    assert value["unplaced"] == [{"count": 1, "reason": "0 of 1 node: 1 without 9 cpu free", "workloads": ["shop/b"]}]
    assert (value["profile"], value["seed"], value["nodes"], value["placed"], value["notPlaced"]) == ("balanced", 7, 1, 1, 1)
    assert value["utilisation"]["cpu"]["after"] == 1000
    assert value["qos"] == {"shop/a": "Burstable", "shop/b": "Burstable"}
    assert value["fullness"] == {"n1": 0.25}
    assert value["explained"]["refused"] == {"n1": [{"what": "cpu", "need": "9", "have": "3", "missing": "6"}]}


def test_explaining_shows_the_best_with_their_parts_and_every_refusal(lattice, write):
    file = write("a.yaml", in_yaml(a_node("n1"), a_node("n2", cpu=100), a_node("n3", unschedulable=True), a_workload(namespace="default")))
    out = lattice("simulate", "-f", file, "--explain", "w1").out
    assert "default/w1: n1: best of 1 that fit, of 3 nodes (" in out
    assert "NODE   SCORE   BALANCEDRESOURCES" in out
    assert "n2        cpu: need 1, have 100m, missing 900m\n" in out
    assert "\nn3        " in out


def test_the_same_input_gives_the_same_output(lattice, write):
    file = write("a.jsonl", in_lines(*(a_node(f"n{i}") for i in range(20)), *(a_workload(f"w{i}") for i in range(15))))
    first, second, other = (lattice("simulate", "-f", file, "--seed", seed).out for seed in ("1", "1", "2"))
    assert first == second
    assert first != other


def changed(value, path, to):
    *above, last = path.split(".")
    inner = value
    for step in above:
        inner = inner[step]
    inner[last] = to
    return value


BAD = [
    pytest.param(changed(a_workload(), "spec.requests.cpu", "-1"), "must be 0 or more", id="a negative request"),
    pytest.param(changed(a_workload(), "spec.requests.memory", "99999Ei"), "is more than can be counted", id="an absurd request"),
    pytest.param(changed(a_workload(), "spec.requests.memory", "5Ei"), "more than any node has", id="more than any node can have"),
    pytest.param(changed(a_workload(), "spec.requests.cpu", "lots"), "must be 0 or more", id="not a quantity"),
    pytest.param(a_workload(limits={"cpu": "500m"}), "must be at most the limit (500m), got 1", id="a request over its limit"),
    pytest.param(a_workload(colour="red"), 'unknown field "spec.colour"', id="an unknown field"),
    pytest.param(a_workload(name="No Name"), "metadata.name", id="a name that is none"),
    pytest.param(a_workload(labels={"a b": "c"}), "metadata.labels", id="a label that is none"),
    pytest.param(a_workload(priority="high"), "spec.priority", id="a priority that is no number"),
    pytest.param(a_workload(containers={}), "must have at least one container", id="nothing to run"),
    pytest.param(
        a_workload(constraints={"spread": [{"topologyKey": "zone", "maxSkew": 0}]}), "spec.constraints.spread[0].maxSkew", id="no skew"
    ),
    pytest.param(
        a_workload(constraints={"spread": [{"topologyKey": "zone"}]}),
        "spec.constraints.spread[0].selector: must be given",
        id="spread of nobody",
    ),
    pytest.param(a_node(cpu=-4000), "status.capacity.cpu: must be from 0 to 2^53, got -4000", id="negative capacity"),
    pytest.param(a_node(memory=1 << 62), "status.capacity.memory: must be from 0 to 2^53", id="absurd capacity"),
    pytest.param(changed(a_node(), "kind", "LatticeNod"), "did you mean LatticeNode?", id="an unknown kind"),
    pytest.param(changed(a_node(), "apiVersion", "v1"), "use apiVersion: lattice.dev/v1alpha1", id="a wrong version"),
]


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
@pytest.mark.parametrize(("value", "problem"), BAD)
def test_bad_input_is_refused_with_file_and_line(lattice, write, form, value, problem):
    good = a_workload("good")
    text = in_yaml(good, value) if form == "yaml" else in_lines(good, value)
    ran = lattice("simulate", "-f", write(f"bad.{form}", text))
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err
    line = in_yaml(good).count("\n") + 2 if form == "yaml" else 2
    assert f"bad.{form}:{line}: " in ran.err or (form == "yaml" and "bad.yaml:" in ran.err)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        pytest.param('{"kind": "LatticeNode"', "bad.jsonl:2: ", id="half an object"),
        pytest.param("[1, 2]", "bad.jsonl:2: a manifest is a mapping, got a list", id="a list"),
        pytest.param("{}", "bad.jsonl:2: apiVersion is missing", id="an empty object"),
        pytest.param(json.dumps(a_workload()).replace('"kind"', '"kind": "x", "kind"'), 'the key "kind" is given twice', id="a key twice"),
        pytest.param('{"kind": "LatticeNode", "n": "' + "x" * (1 << 20) + '"}', "is larger than 1 MiB", id="an endless line"),
    ],
)
def test_bad_lines_are_refused_with_their_number(lattice, write, line, problem):
    ran = lattice("simulate", "-f", write("bad.jsonl", in_lines(a_node()) + line + "\n"))
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
@pytest.mark.parametrize(("value", "what"), [(a_node(), "node n1"), (a_workload(), "workload shop/w1")], ids=["nodes", "workloads"])
def test_a_name_is_given_once(lattice, write, form, value, what):
    first = write(f"first.{form}", (in_yaml if form == "yaml" else in_lines)(value))
    second = write("second.jsonl", in_lines(value))
    ran = lattice("simulate", "-f", first, "-f", second)
    assert ran.code == 1
    assert f"{what} is given twice, first at first.{form}:" in ran.err
    assert "second.jsonl:1" in ran.err


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        pytest.param(
            {"name": "n2", "labels": {"lattice.dev/price-per-hour": "cheap"}}, "must be dollars an hour", id="a price that is none"
        ),
        pytest.param({"generateName": "n"}, "metadata.name is missing", id="no name"),
        pytest.param({"name": "n 2"}, "metadata.name", id="a name that is none"),
        pytest.param({"name": "n1", "namespace": "shop"}, "is given twice", id="a node in a namespace"),
        pytest.param({"name": "n2", "colour": "red"}, 'unknown field "metadata.colour"', id="an unknown field"),
    ],
)
def test_metadata_is_looked_at_even_if_the_rest_is_known(lattice, write, metadata, problem):
    ran = lattice("simulate", "-f", write("bad.jsonl", in_lines(a_node("n1"), {**a_node(), "metadata": metadata})))
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err
    assert "bad.jsonl:2: " in ran.err


def test_equal_names_in_two_namespaces_are_two(lattice, write):
    file = write("a.yaml", in_yaml(a_node(), a_workload(namespace="a"), a_workload(namespace="b")))
    assert "2 placed" in lattice("simulate", "-f", file).out


def test_every_problem_is_told_up_to_a_limit(lattice, write):
    ran = lattice("simulate", "-f", write("bad.jsonl", in_lines(*(a_node(f"n{i}", cpu=-1) for i in range(50)))))
    assert ran.err.count("error: ") == 20
    assert "gave up after 20 problems" in ran.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("name: mine\nscores: {BinPacking: 1}\n", "", id="a profile of one's own"),
        pytest.param("name: mine\nscores: {BinPacking: 1}\ntieBreaker: random\n", "", id="with dice for ties"),
        pytest.param("name: mine\nscores:\n  Magic: 1\n", 'mine.yaml:3: scores.Magic: no score "Magic"', id="an unknown plugin"),
        pytest.param("name: mine\nscores: {BinPacking: -1}\n", "must be a number of 0 or more", id="a negative weight"),
        pytest.param("name: mine\nscores: {BinPacking: 1}\ndisabled: [Fit]\n", "Fit cannot be disabled", id="without the vital"),
        pytest.param("name: mine\nscores: {BinPacking: 1}\nmagic: 1\n", "is not a field of a profile", id="an unknown field"),
    ],
)
def test_profiles_are_files_too(lattice, write, text, problem):
    world = write("a.yaml", in_yaml(a_node(), a_workload()))
    ran = lattice("simulate", "-f", world, "--profile", write("mine.yaml", text))
    assert ran.code == (1 if problem else 0), ran.err
    assert problem in ran.err


def test_mistakes_in_a_profile_come_in_the_order_of_their_lines(lattice, write):
    text = "scores:\n  Price: -1\nseed: x\nmagic: 1\ntieBreaker: coin\nname: 3\n"
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node())), "--profile", write("mine.yaml", text))
    assert re.findall(r"mine.yaml:(\d): (\S+):", ran.err) == [
        ("2", "scores.Price"),
        ("3", "seed"),
        ("4", "magic"),
        ("5", "tieBreaker"),
        ("6", "name"),
    ]


def test_an_unknown_profile_names_the_known_ones(lattice, write):
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node(), a_workload())), "--profile", "magic")
    assert ran.code == 1
    assert 'no profile "magic"' in ran.err
    assert "resource-efficiency" in ran.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["-f", "gone.yaml"], "cannot be read", id="no such file"),
        pytest.param(["-f", "gone.jsonl"], "cannot be read", id="no such file of lines"),
        pytest.param(["-f", "empty"], "no manifests in this folder", id="an empty folder"),
        pytest.param(["-f", "a.yaml", "--explain", "shop/nobody"], "there is no such workload to decide", id="nobody to explain"),
        pytest.param(["-f", "a.yaml", "--explain", "w1"], "fix: did you mean shop/w1?", id="somebody of another namespace"),
        pytest.param(["-f", "a.yaml", "--seed", "abc"], "must be a whole number such as 7, got 'abc'", id="a seed that is no number"),
        pytest.param(["-f", "a.yaml", "--seed", str(2**63)], "must be from -2^63 to 2^63 - 1", id="a seed too large"),
        pytest.param(["-f", "nothing.json"], "nothing.json: there is no manifest here", id="an empty file"),
        pytest.param(["-f", "a.yaml", "--profile", "empty"], "empty: is a folder, not a profile", id="a folder as a profile"),
        pytest.param(["-f", "a.yaml", "--profile", "nothing.json"], "nothing.json: there is no profile here", id="an empty profile"),
        pytest.param(["-f", "a.yaml", "--profile", "list.yaml"], "a profile is a mapping, got a list", id="a list as a profile"),
    ],
)
def test_what_is_not_there_is_said(lattice, write, tmp_path, arguments, problem):
    write("a.yaml", in_yaml(a_node(), a_workload()))
    write("nothing.json", "")
    write("list.yaml", "[1, 2]")
    (tmp_path / "empty").mkdir()
    ran = lattice("simulate", *arguments)
    assert ran.code in (1, 2)
    assert problem in ran.err


def test_gangs_and_the_important_are_heard(lattice, write):
    gang = [a_workload(f"g{i}", cpu="2", group={"name": "g", "minMember": 3}) for i in range(3)]
    bound = {**a_workload("old", cpu="4"), "status": {"binding": {"node": "n1"}}}
    value = json.loads(lattice("simulate", "-f", write("a.yaml", in_yaml(a_node(), *gang)), "-o", "json").out)
    assert value["placements"] == {}
    assert "minMember is 3" in value["unplaced"][0]["reason"]
    file = write("b.yaml", in_yaml(a_node(), bound, a_workload("new", cpu="2", priority=5)))
    value = json.loads(lattice("simulate", "-f", file, "-o", "json").out)
    assert (value["placements"], value["displaced"]) == ({"shop/new": "n1"}, {"shop/old": {"node": "n1", "by": "shop/new"}})
    assert "shop/old    n1       shop/new   <none>\n" in lattice("simulate", "-f", file).out


def test_of_many_reasons_those_beyond_the_list_are_told_by_kind_and_none_with_the_amounts_of_another(lattice, write):
    file = write("a.jsonl", in_lines(a_node(), *(a_workload(f"w{i}", cpu=f"{5001 + i}m") for i in range(60))))
    out = lattice("simulate", "-f", file).out
    assert "1            shop/w49                          0 of 1 node: 1 without 5050m cpu free\n" in out
    assert "10           shop/w50, shop/w51, shop/w52, …   without … cpu free\n" in out
    assert lattice("simulate", "-f", file, "-o", "wide").out.count("0 of 1 node: 1 without 50") == 60


def test_only_equal_reasons_share_a_line(lattice, write):
    out = lattice(
        "simulate", "-f", write("a.jsonl", in_lines(a_node(), *(a_workload(f"w{i}", cpu=cpu) for i, cpu in enumerate("966"))))
    ).out
    assert "2            shop/w1, shop/w2   0 of 1 node: 1 without 6 cpu free\n" in out
    assert "1            shop/w0            0 of 1 node: 1 without 9 cpu free\n" in out


def test_equal_runs_give_equal_json(lattice, write):
    file = write("a.yaml", in_yaml(a_node(), a_workload()))
    first, second = (lattice("simulate", "-f", file, "-o", "json").out for _ in range(2))
    assert first == second
    assert "seconds" not in json.loads(first)


def test_the_profile_may_bring_the_seed(lattice, write):
    file = write("a.jsonl", in_lines(*(a_node(f"n{i}") for i in range(20)), *(a_workload(f"w{i}") for i in range(15))))
    mine = write("mine.yaml", "scores: {BinPacking: 1}\nseed: 5\ntieBreaker: random\n")
    found = [json.loads(lattice("simulate", "-f", file, "--profile", mine, "-o", "json", *more).out) for more in ([], ["--seed", "5"])]
    assert found[0] == found[1]
    assert found[0]["seed"] == 5
    other = json.loads(lattice("simulate", "-f", file, "--profile", mine, "-o", "json", "--seed", "0").out)
    assert other["seed"] == 0
    assert other["placements"] != found[0]["placements"]


def test_what_is_odd_is_a_warning_with_its_line(lattice, write):
    node = a_node()
    node["status"]["gpus"] = [{"model": "t4"}]
    bound = [{**a_workload(f"b{i}", requests={"cpu": "3", "gpu": 1}), "status": {"binding": {"node": "n1"}}} for i in range(2)]
    cpu = [{**a_workload("b2", cpu="3"), "status": {"binding": {"node": "n1"}}}]
    counted = changed(a_node("n2"), "status.capacity", {"cpu": 1, "gpu": 1000})
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(node, *bound, *cpu, counted)))
    assert ran.code == 0, ran.err
    assert "Warning: a.jsonl:3: workload shop/b1 is bound to node n1, which cannot hold its 1 gpu" in ran.err
    assert (
        "Warning: a.jsonl:1: node n1 workloads bound to it take more than it has: 6 of 4 cpu; too little cpu slows them down\n" in ran.err
    )
    assert "Warning: a.jsonl:5: node n2 says 1 gpu, yet none counts: list each one under status.gpus" in ran.err


def test_a_binding_to_an_unknown_node_is_told_with_its_line(lattice, write):
    bound = {**a_workload("b"), "status": {"binding": {"node": "gone"}}}
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(a_node(), bound)))
    assert ran.code == 1
    assert "error: a.jsonl:2: shop/b: is bound to node gone, which is not among those given\n" in ran.err


def test_how_far_it_is_is_told_on_a_terminal_only(lattice, write):
    file = write("a.jsonl", in_lines(a_node(cpu=10**7), *(a_workload(f"w{i}", cpu="1m") for i in range(LONG))))
    command = [sys.executable, "-m", "lattice.cli.main", "simulate", "-f", file]
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "rb", buffering=0) as screen:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, timeout=60, check=True)
        os.close(theirs)
        assert b"deciding" in screen.read(1 << 16)
    assert b"deciding" not in ran.stdout
    assert "deciding" not in lattice("simulate", "-f", file).err


def test_a_gang_has_one_size(lattice, write):
    members = [a_workload(f"g{least}", group={"name": "g", "minMember": least}) for least in (2, 3)]
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(a_node(), *members)))
    assert ran.code == 1
    assert "a.jsonl:3: spec.group.minMember: must be the same for all of group shop/g: 3 here, 2 at a.jsonl:2" in ran.err


def test_a_json_list_needs_no_kind(lattice, write):
    for text in (json.dumps([a_node(), a_workload()]), json.dumps([a_node(), a_workload()], indent=2)):
        assert "1 node: 1 placed" in lattice("simulate", "-f", write("all.json", text)).out


DEEP = '{"x":' * 5000 + "1" + "}" * 5000


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        pytest.param("a.json", DEEP, 1, id="in an object"),
        pytest.param("a.json", f"\n[{DEEP}]", 2, id="in a list"),
        pytest.param("a.json", '{"kind": "List", "items": [\n' + DEEP + "]}", 2, id="in a List"),
        pytest.param("a.json", f"{{}}\n{DEEP}", 2, id="in a line of a .json file"),
        pytest.param("a.jsonl", in_lines(a_node()) + DEEP, 2, id="in a line"),
        pytest.param("a.jsonl", in_lines(a_node()).replace('"spec": {}', f'"spec": {DEEP}'), 1, id="in a spec"),
        pytest.param("a.json", "[" * 5000 + "]" * 5000, 1, id="in lists"),
    ],
)
def test_what_is_nested_too_deep_is_told_with_its_line(lattice, write, monkeypatch, name, text, line):
    assert f"error: {name}:{line}: is nested deeper than 32 levels\n" in lattice("simulate", "-f", write(name, text)).err
    with open(name) as file:
        monkeypatch.setattr(sys, "stdin", file)
        ran = lattice("simulate", "-f", "-")
    assert ran.code == 1
    assert f"error: <stdin>:{line}: is nested deeper than 32 levels\n" in ran.err


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        pytest.param("a.json", '{"kind": "LatticeNode",\n "spec": }', 2, id="no value"),
        pytest.param("a.json", '[{"kind": "LatticeNode"},\n', 2, id="a list cut short"),
        pytest.param("a.json", "kind: LatticeNode\n", 1, id="YAML"),
        pytest.param("a.json", in_lines(a_node()) + '{"kind": \n', 2, id="a line of several"),
    ],
)
def test_what_is_not_json_is_not_judged_as_yaml(lattice, write, monkeypatch, name, text, line):
    ran = lattice("simulate", "-f", write(name, text))
    assert ran.code == 1
    assert f"error: {name}:{line}: is not JSON: " in ran.err
    assert "YAML" not in ran.err


def test_broken_json_on_standard_input_is_not_judged_as_yaml(lattice, write, monkeypatch):
    with open(write("in", '{"kind": "LatticeNode",\n "spec": {]}')) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert "error: <stdin>:2: is not JSON: " in lattice("simulate", "-f", "-").err


def test_lines_that_are_no_text_are_one_mistake(lattice, write, tmp_path):
    write("a.jsonl", "")
    (tmp_path / "a.jsonl").write_bytes(b"\x7fELF\0\n\n\1\n\2" * 100)
    ran = lattice("simulate", "-f", "a.jsonl")
    assert (ran.code, ran.err.count("error:")) == (1, 1)
    assert "error: a.jsonl: is not text\n" in ran.err


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        pytest.param("a.yaml", "---\n".join(yaml.safe_dump(each) for each in (a_node(), a_node())), (1, 11), id="YAML"),
        pytest.param("a.json", json.dumps([a_node(), a_node()], indent=2), (2, 16), id="a JSON list"),
        pytest.param("a.jsonl", in_lines(a_node(), a_node()), (1, 2), id="lines"),
    ],
)
def test_a_name_given_twice_is_told_with_where_both_objects_begin(lattice, write, name, text, lines):
    first, second = lines
    ran = lattice("simulate", "-f", write(name, text))
    assert f"error: {name}:{second}: latticenode.lattice.dev/n1: node n1 is given twice, first at {name}:{first}\n" in ran.err


@pytest.mark.parametrize(
    ("again", "told"),
    [
        pytest.param("a.yaml", "a.yaml: is given twice\n", id="by the same name"),
        pytest.param("./a.yaml", "./a.yaml: is given twice, first as a.yaml\n", id="by another name"),
        pytest.param(".", "a.yaml: is given twice\n", id="in its folder"),
    ],
)
def test_a_file_given_twice_is_one_mistake(lattice, write, again, told):
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node(), a_workload())), "-f", again)
    assert (ran.code, ran.err.count("error:")) == (1, 1)
    assert f"error: {told}" in ran.err


@pytest.mark.parametrize(
    ("resource", "given", "told"),
    [
        pytest.param("memory", "16Gi", 'must be a whole number of bytes: 17179869184 for "16Gi"', id="memory with a unit"),
        pytest.param("cpu", "4", 'must be a whole number of milli-cores: 4000 for "4"', id="cores as text"),
        pytest.param("cpu", 1.5, "must be a whole number of milli-cores: 1500 for 1.5", id="parts of cores"),
        pytest.param("memory", "much", 'must be a whole number of bytes, got "much"', id="no number"),
        pytest.param("fpga", "2", 'must be a whole number: 2 for "2"', id="a thing that is counted"),
        pytest.param("memory", True, "must be an integer", id="neither text nor number"),
    ],
)
def test_amounts_of_nodes_in_other_units_are_told_with_the_number(lattice, write, resource, given, told):
    node = changed(a_node(), "status.capacity", {resource: given})
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(node)))
    assert ran.code == 1
    assert f"  a.jsonl:1: status.capacity.{resource}: " in ran.err
    assert told in ran.err


def test_explaining_a_member_of_a_group_shows_what_the_others_leave(lattice, write):
    gang = [a_workload(f"g{i}", cpu="2", group={"name": "g", "minMember": 3}) for i in range(3)]
    out = lattice("simulate", "-f", write("a.yaml", in_yaml(a_node(), *gang)), "--explain", "shop/g0").out
    assert "nodes are shown with the 2 others of its group that fit in place\n" in out
    assert "n1        cpu: need 2, have 0, missing 2\n" in out


def test_an_offline_mistake_is_fixed_offline(lattice, write):
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_workload(colour="red"))))
    assert "fix: `lattice crds latticeworkloads` shows the fields there are" in ran.err
    assert "did you mean" not in ran.err
    assert lattice("crds", "latticeworkloads").code == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param({"contraints": {}}, 'unknown field "spec.contraints"; did you mean constraints?', id="a part of the spec"),
        pytest.param(
            {"containers": {"main": {"command": ["x"], "ports": [{"name": "a", "protocl": "TCP"}]}}},
            'unknown field "spec.containers.main.ports[0].protocl"; did you mean protocol?',
            id="below keys and lists",
        ),
        pytest.param({"Priority": 1, "group": {"minMember": 2}}, "unknown field; did you mean priority?", id="beside another mistake"),
    ],
)
def test_a_field_that_there_is_not_is_told_with_the_one_that_was_meant(lattice, write, change, told):
    assert told in lattice("simulate", "-f", write("a.yaml", in_yaml(a_workload(**change)))).err


def test_lines_in_a_file_of_another_name_are_hinted_at(lattice, write):
    ran = lattice("simulate", "-f", write("all.txt", in_lines(a_node(), a_workload())))
    assert ran.code == 1
    assert "rename it" in ran.err


def test_nothing_on_standard_input_is_a_mistake(lattice, write, monkeypatch):
    with open(write("in", "")) as file:
        monkeypatch.setattr(sys, "stdin", file)
        ran = lattice("simulate", "-f", "-")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "error: <stdin>: there is no manifest here")


def test_a_reason_is_folded_into_the_terminal():
    report = Report(1, 0, 0, {}, (Unplaced(("shop/a",), "0 of 9 nodes: " + "; ".join(["3 without 1 cpu free"] * 3)),), {}, (), 0.0)
    told = list(lines(report, columns=60))
    assert max(map(len, told)) <= 60
    assert told[-1].strip() == "cpu free"


def test_sums_are_written_as_numbers():
    assert [amount("cpu", 30_286_750), amount("gpu", 500), amount("fpga", 12345)] == ["30,286.75", "0.5", "12,345"]


def test_the_guide_names_everything_there_is_to_choose_and_to_read(lattice, write):
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "simulate.md").read_text()
    file = write("a.yaml", in_yaml(a_node(), a_workload()))
    found = json.loads(lattice("simulate", "-f", file, "-o", "json", "--explain", "shop/w1").out)
    for name in (*PRESETS, *FILTERS, *SCORES, *TieBreaker, *found, *found["explained"]):
        assert f"`{name}`" in guide, name
    (profile,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert lattice("simulate", "-f", file, "--profile", write("night.yaml", profile)).code == 0
