"""The files of the page: small, complete, of one origin, and allowed by the content security policy."""

import re
from pathlib import PurePosixPath

import pytest
from build import browser

from lattice.ui import assets

ASSETS = assets()
SCRIPTS = sorted(path for path in ASSETS if path.endswith(".js"))
OURS = [path for path in SCRIPTS if not path.startswith("vendor/")]
EXPORT = re.compile(r"^export (?:async )?(?:function|const|class) (\w+)", re.MULTILINE)
IMPORTED = re.compile(r"(?:import|export) \{([^}]*)\}")
IMPORT = re.compile(r"""(?:\bfrom\s*|\bimport\s*\(?\s*)["']([^"']+)["']""")
LARGEST = 150 * 1024
LONGEST_LINE, MOST_LINES = 140, 300


def test_assets_stay_within_the_size_limit() -> None:
    assert sum(len(each.gzipped) for each in ASSETS.values()) <= LARGEST


def test_scripts_stay_short_and_their_lines_readable() -> None:
    lines = {path: ASSETS[path].body.decode().splitlines() for path in OURS}
    assert [path for path in OURS if len(lines[path]) > MOST_LINES] == []
    assert [
        f"{path}:{at}" for path in OURS for at, line in enumerate(lines[path], 1) if len(line) > LONGEST_LINE
    ] == []


def test_every_export_is_imported() -> None:
    bodies = {path: ASSETS[path].body.decode() for path in OURS}
    made = [(path, name) for path in OURS for name in EXPORT.findall(bodies[path])]
    used = {
        name
        for body in bodies.values()
        for names in IMPORTED.findall(body)
        for name in re.findall(r"\w+", names)
    }
    assert [
        f"{path} {name}"
        for path, name in made
        if name not in used and len(re.findall(rf"\b{name}\b", bodies[path])) < 2
    ] == []


@pytest.mark.parametrize(
    ("is_ci", "outcome"), [("true", "Failed"), ("", "Skipped")], ids=["in CI", "on a laptop"]
)
def test_a_missing_browser_fails_in_ci_and_nowhere_else(
    is_ci: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "CHROMIUM", "")
    monkeypatch.setenv("CI", is_ci)
    with pytest.raises(BaseException, match="chromium is not installed") as told:
        browser.chromium_needed()
    assert told.typename == outcome


@pytest.mark.parametrize("path", SCRIPTS)
def test_every_import_is_a_file_of_the_page(path: str) -> None:
    for name in IMPORT.findall(ASSETS[path].body.decode()):
        assert name.startswith("."), f"{path} imports {name}, which only an import map could find"
        parts: list[str] = []
        for part in (PurePosixPath(path).parent / name).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        assert "/".join(parts) in ASSETS, f"{path} imports {name}"


@pytest.mark.parametrize("path", ["index.html", "style.css", *OURS])
def test_no_asset_refers_to_another_origin(path: str) -> None:
    body = ASSETS[path].body.decode()
    assert re.findall(r"(?:https?:)?//[a-z][a-z0-9.-]*\.[a-z]{2,}", body) == []
    assert "@import" not in body


def test_index_html_has_no_inline_script_style_or_handler() -> None:
    body = ASSETS["index.html"].body.decode()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", body) == []
    named = re.findall(r'(?:href|src)="([^"#]+)"', body)
    assert [name for name in named if name not in ASSETS] == []


@pytest.mark.parametrize("path", OURS)
def test_no_markup_has_inline_styles(path: str) -> None:
    """Which the content security policy would not let through; objects are set one property at a time."""
    assert re.findall(r"\bstyle=(?!\$\{)", ASSETS[path].body.decode()) == []


def test_vendored_libraries_have_their_licences() -> None:
    told = ASSETS["vendor/README.md"].body.decode()
    for path in ASSETS:
        if path.startswith("vendor/") and path != "vendor/README.md":
            assert f"`{path.removeprefix('vendor/')}`" in told
    assert all(
        "icense" in ASSETS[path].body.decode() or "LICENSE" in path for path in ASSETS if "LICENSE" in path
    )


def test_etag_depends_on_the_content() -> None:
    assert len({each.etag for each in ASSETS.values()}) == len({each.body for each in ASSETS.values()})
