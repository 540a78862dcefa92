"""Do the documents say what is true? Headings, links, the reference, and every sample that can be run."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

import pytest

from docs import build
from docs.pages import error_tree, metric_name
from docs.spec003 import SPEC003
from docs.spec004 import SPEC004
from lattice import metrics
from lattice.cli.main import COMMANDS
from lattice.errors import LatticeError
from lattice.kinds import KINDS
from lattice.settings import SETTINGS
from tests.servers import Server, running_server

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "changes", "bench", "examples")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)

EXPECTED = {
    "kinds": [kind.resource.kind for kind in KINDS],
    "commands": [f"lattice {name}" for name in COMMANDS],
    "settings": [setting.name for setting in SETTINGS],
    "metrics": [metric_name(metric) for metric in metrics.REGISTRY.collect()],
    "errors": [error.__name__ for error in error_tree(LatticeError)],
    "spec-003": [section.title for section in SPEC003.sections],
    "spec-004": [section.title for section in SPEC004.sections],
}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its samples."""
    return FENCE.sub("", path.read_text())


@pytest.mark.parametrize(("page", "heading"), [(page, heading) for page, headings in EXPECTED.items() for heading in headings])
def test_everything_has_a_heading(page: str, heading: str) -> None:
    assert heading in HEADING.findall(prose(build.REFERENCE / f"{page}.md")), f"{heading} is missing: run `make docs`"


def test_the_reference_is_what_the_code_says() -> None:
    assert [shown(path) for path in build.outdated()] == [], "run `make docs`"


def test_a_reference_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "docs" / "reference"
    folder.mkdir(parents=True)
    monkeypatch.setattr(build, "REFERENCE", folder)
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    capsys.readouterr()
    (folder / "kinds.md").write_text("old")
    (folder / "gone.md").write_text("nothing makes this")
    assert build.main(["--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["docs/reference/gone.md", "docs/reference/kinds.md"]
    assert build.main([]) == 0
    assert not (folder / "gone.md").exists()


def anchors(path: Path) -> set[str]:
    """What GitHub makes of the headings; the second of two equal ones gets a number."""
    found: dict[str, int] = {}
    made = set()
    for heading in HEADING.findall(prose(path)):
        plain = LINK.sub(lambda link: link[0].partition("]")[0], heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        made.add(f"{anchor}-{found[anchor]}" if anchor in found else anchor)
        found[anchor] = found.get(anchor, 0) + 1
    return made


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_links_lead_somewhere(path: Path) -> None:
    for link in LINK.findall(prose(path)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = (path.parent / file).resolve() if file else path
        assert target.exists(), f"{shown(path)} links to {link}, which is not there"
        assert not anchor or anchor in anchors(target), f"{shown(path)} links to {link}: no such heading"


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_pages_begin_with_a_title(path: Path) -> None:
    if path.parent.name != "changes":
        assert next(line for line in path.read_text().splitlines() if line and not line.startswith("<!--")).startswith("# ")


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert [name[:4] for name in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    assert re.findall(r"\((0[^)]+)\)", (folder / "README.md").read_text()) == pages
    for name in pages:
        text = (folder / name).read_text()
        assert text.startswith(f"# {name[:4]}: ")
        assert HEADING.findall(text)[1:] == ["Context", "Choice", "What we gave up"], name


def test_the_table_of_exit_codes_is_whole() -> None:
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)}
    assert {error.exit_code for error in error_tree(LatticeError)} | {0, 2, 130} == listed


class Step(NamedTuple):
    """One line that a reader types, what the page says it prints, and the exit code that the page shows next (0 if none)."""

    command: str
    lines: list[str]
    code: int


RUN = ("lattice", "kubectl", "sed", "export")
LEFT_OUT = ("lattice up", "lattice server")  # they do not end by themselves; the server of these tests is one


def steps(path: Path) -> Iterator[Step]:
    for language, sample in FENCE.findall(path.read_text()):
        if language != "console":
            continue
        typed = [piece.splitlines() for piece in re.split(r"^\$ ", sample, flags=re.MULTILINE) if piece]
        for (command, *lines), after in zip(typed, [*typed[1:], [""]], strict=True):
            if command.split()[0] in RUN and not command.startswith(LEFT_OUT):
                yield Step(command, [line for line in lines if line.strip()], int(after[1]) if after[0] == "echo $?" else 0)


def same_words(line: str) -> str:
    """Without what differs from run to run: ages, and the width of columns."""
    return " ".join(re.sub(r"\b(\d+[smhd])+$", "AGE", line.strip()).split())


def assert_printed(step: Step, output: str) -> None:
    """Each line that the page shows is there, in the page's order; pages may leave lines out."""
    left = iter([same_words(line) for line in output.splitlines()])
    for line in step.lines:
        assert same_words(line) in left, f"$ {step.command}\ndoes not print (here): {line}\nbut:\n{output}"


def wait_until_all_run(server: Server) -> None:
    """As a reader does, who types the next line when `make up` is done."""
    until = time.monotonic() + 60
    while set(server.lattice("get", "services", "-o", "jsonpath={.items[*].status.phase}").stdout.split()) != {"Running"}:
        assert time.monotonic() < until, server.lattice("get", "services,workloads").stdout
        time.sleep(0.2)


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize("path", [path for path in PAGES if list(steps(path))], ids=shown)
def test_samples_run_as_shown(path: Path, tmp_path: Path) -> None:
    """In a folder like the reader's, with the server that `make up` starts."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    program = Path(sys.executable).parent
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "KUBECONFIG"))},
        "PATH": f"{program}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "NO_COLOR": "1",
    }
    with running_server(tmp_path / ".lattice", "--controllers", "*", "--providers", "local,docker=local") as server:
        assert server.lattice("apply", "-f", str(ROOT / "examples" / "quickstart")).returncode == 0
        wait_until_all_run(server)
        for step in steps(path):
            if step.command.startswith("kubectl") and shutil.which("kubectl") is None:
                continue
            ran = subprocess.run(
                ["bash", "-c", step.command],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                check=False,
            )
            assert ran.returncode == step.code, f"$ {step.command}\nended with {ran.returncode}:\n{ran.stdout}"
            assert_printed(step, ran.stdout)
