"""The benchmarks report missed targets and unknown arguments."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import fleet, openb, scheduling
from bench.report import Figure, Report


@pytest.mark.parametrize(
    ("measured", "exit_code", "words"),
    [
        pytest.param(9.0, 1, "not reached: S1, a thing", id="an aim that is missed fails the run"),
        pytest.param(10.0, 0, "every aim reached", id="just enough is enough"),
    ],
)
def test_scheduling(
    measured: float,
    exit_code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(
        scheduling.CASES,
        "thing",
        lambda bench: bench.add(Figure("S1", "a thing", measured, "/s", at_least=10.0)),
    )
    assert scheduling.main(["--quick", "thing"]) == exit_code
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("workload", ["nope", "default+nope"])
def test_unknown_trace_lists_the_existing_ones(
    workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "published_summary.csv").write_text("workload,policy,mean_100,mean_130\n")
    for name in ("default", "cpu050"):
        (tmp_path / f"openb_pod_list_{name}.csv").touch()
    monkeypatch.setattr(openb, "DATA", tmp_path)
    assert openb.main(["--workload", workload, "--save", ""]) == 2
    assert f'no workload "nope" in {tmp_path}; there are cpu050, default' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "ratio", "told"),
    [
        pytest.param(
            "online",
            1.0692,
            "6.92 % | ≤ 7 | yes | +6.9200 % of at most +7 %; worst +6.9200 %",
            id="a margin is seen",
        ),
        pytest.param(
            "optimised",
            1.0007,
            "0.07 % | ≤ 0.1 | yes | +0.0700 % of at most +0.1 %; worst +0.0700 %",
            id="the smallest aim is legible",
        ),
        pytest.param(
            "optimised",
            1.0011,
            "0.11 % | ≤ 0.1 | NO | +0.1100 % of at most +0.1 %; worst +0.1100 %",
            id="and so is missing it",
        ),
    ],
)
def test_fleet_plan_costs_show_significant_digits(name: str, ratio: float, told: str) -> None:
    report = Report({})
    fleet.add_costs(report, {**{each: [1.0] for each in fleet.AIMS}, name: [ratio]})
    figure = next(each for each in report.figures if each.what.startswith(name))
    assert " | ".join(figure.cells[1:]) == told


ROOT = Path(__file__).parents[1]
RECIPES = re.findall(
    r"^\t(.*)\$\(BIN\)/python -m (bench[.\w]*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
)


def imported_modules(name: str, imports: set[str]) -> set[str]:
    """Add the modules that a module of the benchmarks imports, directly or through other benchmarks."""
    path = ROOT / name.replace(".", "/")
    source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.walk(ast.parse(source.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
        for imported in set(names) - imports:
            imports.add(imported)
            if (
                imported.startswith("bench.")
                and (ROOT / imported.replace(".", "/")).with_suffix(".py").exists()
            ):
                imported_modules(imported, imports)
    return imports


@pytest.mark.parametrize(("environment", "module"), RECIPES, ids=[module for _, module in RECIPES])
def test_make_gives_a_benchmark_the_builders_that_it_imports(environment: str, module: str) -> None:
    needs_builders = any(name.split(".")[0] == "build" for name in imported_modules(module, set()))
    assert needs_builders == (environment == "PYTHONPATH=tests ")


@pytest.mark.parametrize("name", ["bench.__main__", "bench.control", "bench.page", "chaos.trial"])
def test_programs_with_builders_start_from_the_project(name: str) -> None:
    """`tests` is on the path of pytest, so an import here would not show a path that a recipe lacks."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if name.startswith("bench"):
        environment["PYTHONPATH"] = "tests"
    command = [sys.executable, "-c", f"import {name}"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


def test_make_runs_every_benchmark() -> None:
    names = ("control", "fleet", "openb", "page", "scheduling")
    assert {module for _, module in RECIPES} == {"bench", *(f"bench.{name}" for name in names)}
