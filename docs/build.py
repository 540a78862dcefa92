"""`python -m docs.build`: writes the reference and the figures of documents; with --check, reports pages that
differ from the code."""

import sys
from pathlib import Path

from docs import architecture, figures
from docs.pages import PAGES

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Made from the code by `make docs`; do not edit. -->"


def rendered() -> dict[Path, str]:
    pages = {REFERENCE / f"{name}.md": page for name, page in PAGES.items()}
    pages[REFERENCE.parent / "architecture.md"] = architecture.page
    return {path: "\n\n".join([NOTE, *page()]) + "\n" for path, page in pages.items()}


def outdated() -> list[Path]:
    """Pages that differ from the code, and pages without a source."""
    expected = rendered()
    differing = [path for path, text in expected.items() if not path.exists() or path.read_text() != text]
    return sorted([*differing, *(path for path in REFERENCE.glob("*.md") if path not in expected)])


def write() -> None:
    REFERENCE.mkdir(exist_ok=True)
    for stale in outdated():
        stale.unlink(missing_ok=True)
    for path, text in rendered().items():
        path.write_text(text)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python -m docs.build [--check]\n")
        return 2
    stale = [str(path.relative_to(REFERENCE.parent.parent)) for path in outdated()]
    if arguments:
        sys.stdout.writelines(f"{path} differs from the code; run `make docs`\n" for path in stale)
        return 1 if stale else 0
    write()
    stale += [str(path.relative_to(REFERENCE.parent.parent)) for path in figures.write()]
    sys.stdout.writelines(f"{path} written\n" for path in stale)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
