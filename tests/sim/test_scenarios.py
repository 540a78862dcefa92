"""The output of each scenario is unchanged. `REWRITE=1` writes the new output, which is reviewed like code."""

import difflib
import os
from pathlib import Path

import pytest

from lattice.sim.scenarios.script import COMMANDS, format_blocks, parse_blocks, run_scenario, usage
from lattice.sim.seed_runner import run_in_subprocess

HERE = Path(__file__).parent
SCENARIOS = sorted(path.name for path in HERE.glob("*.txt"))


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario_output_is_unchanged(name: str) -> None:
    text = (HERE / name).read_text()
    said = run_in_subprocess(lambda: run_scenario(text, name), str)
    if os.environ.get("REWRITE"):
        (HERE / name).write_text(said)
    elif said != text:
        pytest.fail(differing(name, text, said), pytrace=False)


def differing(name: str, text: str, said: str) -> str:
    lines = difflib.unified_diff(
        text.splitlines(), said.splitlines(), f"{name} as written", f"{name} as it is now", lineterm=""
    )
    return "\n".join(
        [
            *lines,
            f"if that is right, REWRITE=1 writes it: REWRITE=1 pytest tests/sim/{Path(__file__).name} -k {name}",
        ]
    )


def test_missing_scenario_output_names_rewrite() -> None:
    words = differing(
        "new.txt", "world racks=1\nshow running\n", "world racks=1\nshow running\n----\nrack-1: nothing\n"
    )
    assert "+rack-1: nothing" in words.splitlines()
    assert "REWRITE=1 writes it" in words


def test_every_scenario_opens_with_a_description() -> None:
    assert len(SCENARIOS) >= 25
    assert [name for name in SCENARIOS if not (HERE / name).read_text().startswith("# ")] == []


def test_scenario_text_round_trips() -> None:
    text = "# A sentence.\nworld\n\nshow nodes\n----\nrack-1: Ready\n"
    assert format_blocks(parse_blocks(text)) == text


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        pytest.param(["dance"], "unknown command 'dance'", id="no such command"),
        pytest.param(["run x"], "unknown command 'run'", id="a part of the program is no command"),
        pytest.param(["show weather"], "cannot show 'weather'", id="nothing that can be shown"),
        pytest.param(["show"], "cannot show 'nothing'", id="nothing to show at all"),
        pytest.param(["wait"], "SECONDS is missing", id="a word is missing"),
        pytest.param(["wait 3 4"], "'4' is an unexpected argument", id="a word too many"),
        pytest.param(["wait soon"], "SECONDS must be a number, not 'soon'", id="no number"),
        pytest.param(["wait nan"], "SECONDS must be a number, not 'nan'", id="a number that is none"),
        pytest.param(
            ["service api replicas=two"], "replicas must be a whole number, not 'two'", id="no whole number"
        ),
        pytest.param(["service api size=3"], "unknown option 'size'", id="no such option"),
        pytest.param(["workload a near=db:node"], "unknown option 'near'", id="an option of another command"),
        pytest.param(
            ["workload a priority=high"], "priority must be a whole number, not 'high'", id="a shared option"
        ),
        pytest.param(
            ["workload a group=crew"],
            "group=crew: expected a name and the minimum number of members",
            id="half a group",
        ),
        pytest.param(
            ["delete cloud rack-1"], "KIND cannot be 'cloud'", id="a word that is not among those that exist"
        ),
        pytest.param(
            ["kill rack-7"], "no server or machine 'rack-7' exists", id="kill of an unknown machine"
        ),
        pytest.param(["power-off s1"], "no machine 's1' exists", id="no machine"),
        pytest.param(["jump s9 3600"], "no server 's9' exists", id="no server"),
        pytest.param(["drain @lone"], "no workload 'lone' is bound to a node", id="nowhere"),
        pytest.param(["resume"], "no server is paused", id="resume without a paused process"),
        pytest.param(["world"], "the world already exists", id="two worlds"),
        pytest.param(['wait "3'], "cannot parse the command: No closing quotation", id="half a quotation"),
    ],
)
def test_scenario_error_names_line_and_fix(lines: list[str], what: str) -> None:
    told = mistake(["# What it shows.", "world racks=1", "", "wait 1", *lines])
    assert told.startswith(f"new.txt, line 5, `{lines[0]}`: {what}\n  fix: ")


def mistake(lines: list[str]) -> str:
    with pytest.raises(RuntimeError) as caught:
        run_in_subprocess(lambda: run_scenario("\n".join(lines), "new.txt"), str)
    return str(caught.value)


@pytest.mark.parametrize(
    ("line", "fix"),
    [
        pytest.param("dance", "use one of world, wait, class, pool, service,", id="commands"),
        pytest.param(
            "show weather",
            "show one of workloads, services, nodes, money, events, running, attempts, leader",
            id="what is shown",
        ),
        pytest.param("wait", "write the command as `wait SECONDS`", id="how it is written"),
        pytest.param("provider sleeps", "use one of answers, away", id="words"),
        pytest.param("cut rack-7", "use one of leader, s1, s2, s3, rack-1", id="existing machines"),
    ],
)
def test_scenario_error_lists_existing_words(line: str, fix: str) -> None:
    assert f"\n  fix: {fix}" in mistake(["world racks=1", line])


def test_scenario_error_without_machines_says_how_to_begin() -> None:
    assert mistake(["world", "power-off rack-1"]).endswith("\n  fix: begin the scenario with `world racks=1`")


def test_scenario_without_a_world_is_refused() -> None:
    told = mistake(["# What it shows.", "workload lone"])
    assert (
        told
        == "new.txt, line 2, `workload lone`: no world exists yet\n  fix: begin the scenario with `world`, such as `world racks=1`"
    )


def test_every_scenario_command_has_help_and_usage() -> None:
    assert [name for name, deed in COMMANDS.items() if not deed.__doc__] == []
    assert usage("world") == "world [racks=0] [servers=3] [binding=optimistic|pessimistic|two-phase]"
    assert usage("delete") == "delete service|workload|node|pool NAME"
    assert usage("show events") == "show events [ABOUT]"
    assert usage("workload").startswith(
        "workload NAME [cpu=250m] [version=1] [stop=15s] [priority=5] [group=crew:3]"
    )
