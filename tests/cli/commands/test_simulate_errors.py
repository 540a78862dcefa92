"""`lattice simulate` reports every error of its input with the line."""

import json
import re
import sys

import pytest
import yaml
from build.manifests import a_node_manifest, a_workload_manifest, changed, in_lines, in_yaml

BAD = [
    pytest.param(
        changed(a_workload_manifest(), "spec.requests.cpu", "-1"),
        "must be 0 or more",
        id="a negative request",
    ),
    pytest.param(
        changed(a_workload_manifest(), "spec.requests.memory", "99999Ei"),
        "is more than the maximum (2^63 - 1)",
        id="an absurd request",
    ),
    pytest.param(
        changed(a_workload_manifest(), "spec.requests.memory", "5Ei"),
        "more than any node has",
        id="more than any node can have",
    ),
    pytest.param(
        changed(a_workload_manifest(), "spec.requests.cpu", "lots"), "must be a quantity", id="not a quantity"
    ),
    pytest.param(
        a_workload_manifest(limits={"cpu": "500m"}),
        "must be at most the limit (500m), got 1",
        id="a request over its limit",
    ),
    pytest.param(a_workload_manifest(colour="red"), 'unknown field "spec.colour"', id="an unknown field"),
    pytest.param(a_workload_manifest(name="No Name"), "metadata.name", id="a name that is none"),
    pytest.param(a_workload_manifest(labels={"a b": "c"}), "metadata.labels", id="a label that is none"),
    pytest.param(a_workload_manifest(priority="high"), "spec.priority", id="a priority that is no number"),
    pytest.param(a_workload_manifest(containers={}), "must have at least one container", id="nothing to run"),
    pytest.param(
        a_workload_manifest(constraints={"spread": [{"topologyKey": "zone", "maxSkew": 0}]}),
        "spec.constraints.spread[0].maxSkew",
        id="no skew",
    ),
    pytest.param(
        a_workload_manifest(constraints={"spread": [{"topologyKey": "zone"}]}),
        "spec.constraints.spread[0].selector: is required",
        id="spread constraint without a selector",
    ),
    pytest.param(
        a_node_manifest(cpu=-4000),
        "status.capacity.cpu: must be from 0 to 2^53, got -4000",
        id="negative capacity",
    ),
    pytest.param(
        a_node_manifest(memory=1 << 62),
        "status.capacity.memory: must be from 0 to 2^53",
        id="absurd capacity",
    ),
    pytest.param(
        changed(a_node_manifest(), "kind", "LatticeNod"), "did you mean LatticeNode?", id="an unknown kind"
    ),
    pytest.param(
        changed(a_node_manifest(), "apiVersion", "v1"),
        "use apiVersion: lattice.dev/v1alpha1",
        id="a wrong version",
    ),
]

DEEP = '{"x":' * 5000 + "1" + "}" * 5000


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
@pytest.mark.parametrize(("value", "problem"), BAD)
def test_bad_input_is_refused_with_file_and_line(lattice, write, form, value, problem):
    good = a_workload_manifest("good")
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
        pytest.param(
            json.dumps(a_workload_manifest()).replace('"kind"', '"kind": "x", "kind"'),
            'the key "kind" appears twice',
            id="a key twice",
        ),
        pytest.param(
            '{"kind": "LatticeNode", "n": "' + "x" * (1 << 20) + '"}',
            "is larger than 1 MiB",
            id="an endless line",
        ),
    ],
)
def test_bad_lines_are_refused_with_their_number(lattice, write, line, problem):
    ran = lattice("simulate", "-f", write("bad.jsonl", in_lines(a_node_manifest()) + line + "\n"))
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err


@pytest.mark.parametrize("form", ["yaml", "jsonl"])
@pytest.mark.parametrize(
    ("value", "what"),
    [(a_node_manifest(), "node n1"), (a_workload_manifest(), "workload shop/w1")],
    ids=["nodes", "workloads"],
)
def test_duplicate_names_are_refused(lattice, write, form, value, what):
    first = write(f"first.{form}", (in_yaml if form == "yaml" else in_lines)(value))
    second = write("second.jsonl", in_lines(value))
    ran = lattice("simulate", "-f", first, "-f", second)
    assert ran.code == 1
    assert f"{what} appears twice, first at first.{form}:" in ran.err
    assert "second.jsonl:1" in ran.err


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        pytest.param(
            {"name": "n2", "labels": {"lattice.dev/price-per-hour": "cheap"}},
            "must be dollars per hour",
            id="a price that is none",
        ),
        pytest.param({"generateName": "n"}, "metadata.name is missing", id="no name"),
        pytest.param({"name": "n 2"}, "metadata.name", id="a name that is none"),
        pytest.param({"name": "n1", "namespace": "shop"}, "appears twice", id="a node in a namespace"),
        pytest.param(
            {"name": "n2", "colour": "red"}, 'unknown field "metadata.colour"', id="an unknown field"
        ),
    ],
)
def test_metadata_is_validated_for_cached_specs(lattice, write, metadata, problem):
    ran = lattice(
        "simulate",
        "-f",
        write("bad.jsonl", in_lines(a_node_manifest("n1"), {**a_node_manifest(), "metadata": metadata})),
    )
    assert (ran.code, ran.out) == (1, "")
    assert problem in ran.err
    assert "bad.jsonl:2: " in ran.err


def test_problems_are_listed_up_to_a_limit(lattice, write):
    ran = lattice(
        "simulate", "-f", write("bad.jsonl", in_lines(*(a_node_manifest(f"n{i}", cpu=-1) for i in range(50))))
    )
    assert ran.err.count("error: ") == 20
    assert "stopped after 20 problems" in ran.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("name: mine\nscores: {BinPacking: 1}\n", "", id="a profile of one's own"),
        pytest.param(
            "name: mine\nscores: {BinPacking: 1}\ntieBreaker: random\n", "", id="with dice for ties"
        ),
        pytest.param(
            "name: mine\nscores:\n  Magic: 1\n",
            'mine.yaml:3: scores.Magic: no score "Magic"',
            id="an unknown plugin",
        ),
        pytest.param(
            "name: mine\nscores: {BinPacking: -1}\n", "must be a number of 0 or more", id="a negative weight"
        ),
        pytest.param(
            "name: mine\nscores: {BinPacking: 1}\ndisabled: [Fit]\n",
            "Fit cannot be disabled",
            id="without the vital",
        ),
        pytest.param(
            "name: mine\nscores: {BinPacking: 1}\nmagic: 1\n",
            "is not a field of a profile",
            id="an unknown field",
        ),
    ],
)
def test_profiles_are_files_too(lattice, write, text, problem):
    world = write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest()))
    ran = lattice("simulate", "-f", world, "--profile", write("mine.yaml", text))
    assert ran.code == (1 if problem else 0), ran.err
    assert problem in ran.err


def test_profile_errors_are_in_line_order(lattice, write):
    text = "scores:\n  Price: -1\nseed: x\nmagic: 1\ntieBreaker: coin\nname: 3\n"
    ran = lattice(
        "simulate", "-f", write("a.yaml", in_yaml(a_node_manifest())), "--profile", write("mine.yaml", text)
    )
    assert re.findall(r"mine.yaml:(\d): (\S+):", ran.err) == [
        ("2", "scores.Price"),
        ("3", "seed"),
        ("4", "magic"),
        ("5", "tieBreaker"),
        ("6", "name"),
    ]


def test_unknown_profile_lists_the_existing_ones(lattice, write):
    ran = lattice(
        "simulate",
        "-f",
        write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest())),
        "--profile",
        "magic",
    )
    assert ran.code == 1
    assert 'no profile "magic"' in ran.err
    assert "resource-efficiency" in ran.err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["-f", "gone.yaml"], "cannot be read", id="no such file"),
        pytest.param(["-f", "gone.jsonl"], "cannot be read", id="no such file of lines"),
        pytest.param(["-f", "empty"], "no manifests in this folder", id="an empty folder"),
        pytest.param(
            ["-f", "a.yaml", "--explain", "shop/nobody"],
            "there is no such workload to schedule",
            id="explain of an unknown workload",
        ),
        pytest.param(
            ["-f", "a.yaml", "--explain", "w1"],
            "fix: did you mean shop/w1?",
            id="explain without the namespace",
        ),
        pytest.param(
            ["-f", "a.yaml", "--seed", "abc"],
            "must be a whole number such as 7, got 'abc'",
            id="a seed that is no number",
        ),
        pytest.param(
            ["-f", "a.yaml", "--seed", str(2**63)], "must be from -2^63 to 2^63 - 1", id="a seed too large"
        ),
        pytest.param(
            ["-f", "nothing.json"], "nothing.json: the file contains no manifest", id="an empty file"
        ),
        pytest.param(
            ["-f", "a.yaml", "--profile", "empty"],
            "empty: is a folder, not a profile",
            id="a folder as a profile",
        ),
        pytest.param(
            ["-f", "a.yaml", "--profile", "nothing.json"],
            "nothing.json: the file contains no profile",
            id="an empty profile",
        ),
        pytest.param(
            ["-f", "a.yaml", "--profile", "list.yaml"],
            "a profile is a mapping, got a list",
            id="a list as a profile",
        ),
    ],
)
def test_missing_input_is_reported(lattice, write, tmp_path, arguments, problem):
    write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest()))
    write("nothing.json", "")
    write("list.yaml", "[1, 2]")
    (tmp_path / "empty").mkdir()
    ran = lattice("simulate", *arguments)
    assert ran.code in (1, 2)
    assert problem in ran.err


def test_binding_to_an_unknown_node_names_its_line(lattice, write):
    bound = {**a_workload_manifest("b"), "status": {"binding": {"node": "gone"}}}
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(a_node_manifest(), bound)))
    assert ran.code == 1
    assert "error: a.jsonl:2: shop/b: is bound to node gone, which is not in the input\n" in ran.err


def test_gang_members_must_agree_on_min_member(lattice, write):
    members = [a_workload_manifest(f"g{least}", group={"name": "g", "minMember": least}) for least in (2, 3)]
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(a_node_manifest(), *members)))
    assert ran.code == 1
    assert (
        "a.jsonl:3: spec.group.minMember: must be equal in all members of group shop/g: 3 here, 2 at a.jsonl:2"
        in ran.err
    )


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        pytest.param("a.json", DEEP, 1, id="in an object"),
        pytest.param("a.json", f"\n[{DEEP}]", 2, id="in a list"),
        pytest.param("a.json", '{"kind": "List", "items": [\n' + DEEP + "]}", 2, id="in a List"),
        pytest.param("a.json", f"{{}}\n{DEEP}", 2, id="in a line of a .json file"),
        pytest.param("a.jsonl", in_lines(a_node_manifest()) + DEEP, 2, id="in a line"),
        pytest.param(
            "a.jsonl", in_lines(a_node_manifest()).replace('"spec": {}', f'"spec": {DEEP}'), 1, id="in a spec"
        ),
        pytest.param("a.json", "[" * 5000 + "]" * 5000, 1, id="in lists"),
    ],
)
def test_nesting_limit_error_names_its_line(lattice, write, monkeypatch, name, text, line):
    assert (
        f"error: {name}:{line}: is nested deeper than 32 levels\n"
        in lattice("simulate", "-f", write(name, text)).err
    )
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
        pytest.param("a.json", in_lines(a_node_manifest()) + '{"kind": \n', 2, id="a line of several"),
    ],
)
def test_broken_json_file_is_reported_as_json(lattice, write, monkeypatch, name, text, line):
    ran = lattice("simulate", "-f", write(name, text))
    assert ran.code == 1
    assert f"error: {name}:{line}: is not JSON: " in ran.err
    assert "YAML" not in ran.err


def test_broken_json_on_stdin_is_reported_as_json(lattice, write, monkeypatch):
    with open(write("in", '{"kind": "LatticeNode",\n "spec": {]}')) as file:
        monkeypatch.setattr(sys, "stdin", file)
        assert "error: <stdin>:2: is not JSON: " in lattice("simulate", "-f", "-").err


def test_binary_file_is_one_error(lattice, write, tmp_path):
    write("a.jsonl", "")
    (tmp_path / "a.jsonl").write_bytes(b"\x7fELF\0\n\n\1\n\2" * 100)
    ran = lattice("simulate", "-f", "a.jsonl")
    assert (ran.code, ran.err.count("error:")) == (1, 1)
    assert "error: a.jsonl: is not text\n" in ran.err


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        pytest.param(
            "a.yaml",
            "---\n".join(yaml.safe_dump(each) for each in (a_node_manifest(), a_node_manifest())),
            (1, 11),
            id="YAML",
        ),
        pytest.param(
            "a.json", json.dumps([a_node_manifest(), a_node_manifest()], indent=2), (2, 16), id="a JSON list"
        ),
        pytest.param("a.jsonl", in_lines(a_node_manifest(), a_node_manifest()), (1, 2), id="lines"),
    ],
)
def test_duplicate_object_error_names_both_lines(lattice, write, name, text, lines):
    first, second = lines
    ran = lattice("simulate", "-f", write(name, text))
    assert (
        f"error: {name}:{second}: latticenode.lattice.dev/n1: node n1 appears twice, first at {name}:{first}\n"
        in ran.err
    )


@pytest.mark.parametrize(
    ("again", "told"),
    [
        pytest.param("a.yaml", "a.yaml: appears twice\n", id="by the same name"),
        pytest.param("./a.yaml", "./a.yaml: appears twice, first as a.yaml\n", id="by another name"),
        pytest.param(".", "a.yaml: appears twice\n", id="in its folder"),
    ],
)
def test_file_given_twice_is_one_error(lattice, write, again, told):
    ran = lattice(
        "simulate", "-f", write("a.yaml", in_yaml(a_node_manifest(), a_workload_manifest())), "-f", again
    )
    assert (ran.code, ran.err.count("error:")) == (1, 1)
    assert f"error: {told}" in ran.err


@pytest.mark.parametrize(
    ("resource", "given", "told"),
    [
        pytest.param(
            "memory",
            "16Gi",
            'must be a whole number of bytes: 17179869184 for "16Gi"',
            id="memory with a unit",
        ),
        pytest.param("cpu", "4", 'must be a whole number of milli-cores: 4000 for "4"', id="cores as text"),
        pytest.param("cpu", 1.5, "must be a whole number of milli-cores: 1500 for 1.5", id="parts of cores"),
        pytest.param("memory", "much", 'must be a whole number of bytes, got "much"', id="no number"),
        pytest.param("fpga", "2", 'must be a whole number: 2 for "2"', id="a thing that is counted"),
        pytest.param("memory", True, "must be an integer", id="neither text nor number"),
    ],
)
def test_node_amount_in_a_wrong_unit_is_reported(lattice, write, resource, given, told):
    node = changed(a_node_manifest(), "status.capacity", {resource: given})
    ran = lattice("simulate", "-f", write("a.jsonl", in_lines(node)))
    assert ran.code == 1
    assert f"  a.jsonl:1: status.capacity.{resource}: " in ran.err
    assert told in ran.err


def test_offline_error_has_an_offline_fix(lattice, write):
    ran = lattice("simulate", "-f", write("a.yaml", in_yaml(a_workload_manifest(colour="red"))))
    assert "fix: `lattice crds latticeworkloads` lists the fields" in ran.err
    assert "did you mean" not in ran.err
    assert lattice("crds", "latticeworkloads").code == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        pytest.param(
            {"contraints": {}},
            'unknown field "spec.contraints"; did you mean constraints?',
            id="a part of the spec",
        ),
        pytest.param(
            {"containers": {"main": {"command": ["x"], "ports": [{"name": "a", "protocl": "TCP"}]}}},
            'unknown field "spec.containers.main.ports[0].protocl"; did you mean protocol?',
            id="below keys and lists",
        ),
        pytest.param(
            {"Priority": 1, "group": {"minMember": 2}},
            "unknown field; did you mean priority?",
            id="beside another mistake",
        ),
    ],
)
def test_unknown_field_suggests_the_nearest(lattice, write, change, told):
    assert told in lattice("simulate", "-f", write("a.yaml", in_yaml(a_workload_manifest(**change)))).err


def test_json_lines_in_another_file_type_suggest_a_rename(lattice, write):
    ran = lattice("simulate", "-f", write("all.txt", in_lines(a_node_manifest(), a_workload_manifest())))
    assert ran.code == 1
    assert "rename the file" in ran.err


def test_empty_stdin_is_an_error(lattice, write, monkeypatch):
    with open(write("in", "")) as file:
        monkeypatch.setattr(sys, "stdin", file)
        ran = lattice("simulate", "-f", "-")
    assert (ran.code, ran.err.splitlines()[0]) == (1, "error: <stdin>: the file contains no manifest")
