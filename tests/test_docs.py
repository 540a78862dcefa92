"""Headings, links and the reference of the documents are correct; test_samples.py runs their samples."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from urllib.parse import unquote

import pytest

from docs import build, plugins
from docs.events import EVENTS
from docs.failures import FAILURES
from docs.pages import error_tree, metric_name
from docs.spec003 import SPEC003
from docs.spec004 import SPEC004
from lattice import metrics
from lattice.agent.host.runtime_protocol import FailureReason
from lattice.cli.main import COMMANDS
from lattice.errors import LatticeError
from lattice.kinds import KINDS
from lattice.lifecycle import workload as lifecycle
from lattice.placement.greedy.profile import FILTERS, profile_of
from lattice.placement.status.crossings import CLEARED_SUFFIX, CROSSING_CONDITIONS
from lattice.settings import SETTINGS

ROOT = Path(__file__).parents[1]
FOLDERS = ("docs", "changes", "bench", "examples", "deploy")
PAGES = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)

EXPECTED = {
    "kinds": [kind.resource.kind for kind in KINDS],
    "plugins": plugins.names(),
    "commands": [f"lattice {name}" for name in COMMANDS],
    "settings": [setting.name for setting in SETTINGS],
    "metrics": [metric_name(metric) for metric in metrics.REGISTRY.collect()],
    "events": [each.reason for each in EVENTS],
    "errors": [error.__name__ for error in error_tree(LatticeError)],
    "spec-003": [section.title for section in SPEC003.sections],
    "spec-004": [section.title for section in SPEC004.sections],
}


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A page without its samples."""
    return FENCE.sub("", path.read_text())


@pytest.mark.parametrize(
    ("page", "heading"), [(page, heading) for page, headings in EXPECTED.items() for heading in headings]
)
def test_everything_has_a_heading(page: str, heading: str) -> None:
    assert heading in HEADING.findall(prose(build.REFERENCE / f"{page}.md")), (
        f"{heading} is missing: run `make docs`"
    )


def test_reference_is_up_to_date() -> None:
    assert [shown(path) for path in build.outdated()] == [], "run `make docs`"


def test_outdated_reference_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "docs" / "reference"
    folder.mkdir(parents=True)
    monkeypatch.setattr(build, "REFERENCE", folder)
    assert build.main([]) == 0
    assert build.main(["--check"]) == 0
    capsys.readouterr()
    (folder / "kinds.md").write_text("old")
    (folder / "gone.md").write_text("nothing makes this")
    assert build.main(["--check"]) == 1
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "docs/reference/gone.md",
        "docs/reference/kinds.md",
    ]
    assert build.main([]) == 0
    assert not (folder / "gone.md").exists()


def test_every_plugin_that_places_services_is_listed() -> None:
    wishes = profile_of((("cost", True, 50), ("availableCapacity", False, 30))), profile_of(())
    used = [*FILTERS, *(score for profile in wishes for score, _ in profile.scores)]
    listed = {name.partition(" ")[0] for name in plugins.names() if "(pools" in name}
    assert {each.name for each in used} == listed


def told_in(path: Path) -> Iterator[ast.expr]:
    """What stands in the place of the reason, wherever an event is made."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("event", "_event")
            and len(node.args) > 1
        ):
            yield node.args[1]


def words_in(path: Path, pattern: str) -> set[str]:
    constants = (
        node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)
    )
    return {word for word in constants if isinstance(word, str) and re.fullmatch(pattern, word)}


def test_events_are_listed_exactly() -> None:
    """Reasons are written out where events are made; the few that are computed are named here with where they come from."""
    source = ROOT / "src" / "lattice"
    found = [
        (path.name, word) for path in sorted((source / "controllers").rglob("*.py")) for word in told_in(path)
    ]
    written = {word.value for _, word in found if isinstance(word, ast.Constant)}
    computed = {
        "workloads.py": set(lifecycle.EVENT_REASONS.values()),
        "node_health.py": words_in(source / "lifecycle" / "node_health.py", r"Node(Lost|Ready|Quarantined)"),
        "clusters.py": {
            f"Cluster{phase}"
            for phase in words_in(source / "placement" / "status" / "cluster_status.py", r"[A-Z][a-z]+")
            - {"Answers", "True", "False"}
        },
        "placement_writer.py": {"ClusterCreated", "ClusterGrown"},
        "replicas.py": {"ScaledUp", "ScaledDown"},
        "rules.py": set[str](),  # the user's own words
        "binding_records.py": set[str](),  # passed on
        "supply_status.py": {
            f"{kind}{suffix}" for kind in CROSSING_CONDITIONS for suffix in ("", CLEARED_SUFFIX)
        },
    }
    assert {name for name, word in found if not isinstance(word, ast.Constant)} == set(computed)
    assert written.union(*computed.values()) == {each.reason for each in EVENTS}


def test_failure_reasons_are_listed_exactly() -> None:
    """What agents say, and what the lifecycle finds by itself."""
    lifecycle = ROOT / "src" / "lattice" / "lifecycle"
    found = {
        *words_in(lifecycle / "workload.py", r"MISSING|NOT_APPLIED|START_TIMEOUT"),
        *words_in(lifecycle / "retry.py", r"EXITED|NODE_LOST|EVICTED"),
    }
    assert [each.word for each in FAILURES] == sorted({*get_args(FailureReason), *found})


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
def test_links_resolve(path: Path) -> None:
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
        assert next(
            line for line in path.read_text().splitlines() if line and not line.startswith("<!--")
        ).startswith("# ")


@pytest.mark.parametrize("name", ["concepts.md", "contributing.md", "reliability.md"])
def test_named_modules_exist(name: str) -> None:
    """A page names a module by its path from the project, `src/lattice` or, in concepts, `controllers`."""
    bases = [ROOT, ROOT / "src" / "lattice", ROOT / "src" / "lattice" / "controllers"]
    text = (ROOT / "docs" / name).read_text()
    paths = set(re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+\.py)`", text))
    assert paths
    assert [path for path in sorted(paths) if not any((base / path).exists() for base in bases)] == []


def test_decisions_are_numbered_and_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = sorted(path.name for path in folder.glob("0*.md"))
    assert [name[:4] for name in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    assert re.findall(r"\((0[^)]+)\)", (folder / "README.md").read_text()) == pages
    for name in pages:
        text = (folder / name).read_text()
        assert text.startswith(f"# {name[:4]}: ")
        assert HEADING.findall(text)[1:] == ["Context", "Choice", "What we gave up"], name


def test_exit_code_table_is_complete() -> None:
    listed = {
        int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    }
    assert {error.exit_code for error in error_tree(LatticeError)} | {0, 2, 130} == listed
