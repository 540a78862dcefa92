"""`python -m docs.site [FOLDER]`: all pages as a static site, in site/ unless a folder is named; every link leads to something in it."""

import posixpath
import re
import shutil
import sys
from html import escape
from pathlib import Path

from docs.html import converted

ROOT = Path(__file__).parents[1]
STYLE = Path(__file__).parent / "site.css"
FOLDERS = ("docs", "changes", "bench", "deploy")
MENU = {
    "Start": (
        "README.md",
        "docs/tutorial.md",
        "docs/tour.md",
        "docs/guides/run-your-application.md",
        "docs/guides/troubleshoot.md",
        "docs/concepts.md",
        "docs/glossary.md",
        "docs/comparison.md",
    ),
    "Decide": (
        "docs/guides/plan.md",
        "docs/guides/why.md",
        "docs/guides/budgets.md",
        "docs/guides/compliance.md",
        "docs/guides/latency.md",
        "docs/guides/onprem.md",
        "docs/guides/gpu.md",
        "docs/guides/simulate.md",
    ),
    "Run": (
        "deploy/README.md",
        "docs/guides/page.md",
        "docs/operations.md",
        "docs/guides/operate.md",
        "docs/guides/nodes.md",
        "docs/guides/ha.md",
        "deploy/etcd/README.md",
        "docs/guides/backup.md",
        "docs/guides/kubectl.md",
        "docs/guides/traces.md",
        "docs/guides",
        "docs/reliability.md",
        "docs/benchmarks.md",
    ),
    "Reference": ("docs/reference",),
    "More": ("docs/architecture.md", "docs/contributing.md", "docs/decisions/README.md", "CHANGELOG.md"),
}
NAMED = {entry for entries in MENU.values() for entry in entries}

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title} · Lattice</title>
<link rel="stylesheet" href="{up}site.css">
</head>
<body>
<nav>{menu}</nav>
<main>
{body}
</main>
</body>
</html>
"""


def pages() -> list[str]:
    found = [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def address(page: str) -> str:
    return "index.html" if page == "README.md" else page.removesuffix(".md") + ".html"


def title(page: str) -> str:
    text = (ROOT / page).read_text()
    found = re.search(r"^# +(.+?) *$", text, re.MULTILINE)
    return found[1].replace("`", "") if found else posixpath.basename(page).removesuffix(".md")


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pages = pages()
        self._titles = {page: title(page) for page in self._pages}
        self._files: set[str] = set()  # that pages link to and that are no pages themselves

    def write(self) -> int:
        """How many pages there are."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for page in self._pages:
            self._put(address(page), self._whole(page))
        for file in sorted(self._files):
            self._copy(file)
        shutil.copy(STYLE, self.folder / "site.css")
        return len(self._pages)

    def _whole(self, page: str) -> str:
        body = converted((ROOT / page).read_text(), lambda link: self._link(page, link))
        return self._framed(address(page), self._titles[page], body)

    def _framed(self, here: str, heading: str, body: str) -> str:
        up = "../" * here.count("/")
        return PAGE.format(title=escape(heading), up=up, menu=self._menu(here, up), body=body)

    def _menu(self, here: str, up: str) -> str:
        parts = []
        for heading, entries in MENU.items():
            listed = [page for entry in entries for page in self._below(entry)]
            links = "".join(self._entry(page, here, up) for page in listed)
            parts.append(f"<h2>{heading}</h2><ul>{links}</ul>")
        return "".join(parts)

    def _below(self, entry: str) -> list[str]:
        """The page itself, or the pages of a folder that the menu does not name elsewhere."""
        return (
            [entry]
            if entry.endswith(".md")
            else [page for page in self._pages if posixpath.dirname(page) == entry and page not in NAMED]
        )

    def _entry(self, page: str, here: str, up: str) -> str:
        mark = ' aria-current="page"' if address(page) == here else ""
        return f'<li><a href="{up}{address(page)}"{mark}>{escape(self._titles[page])}</a></li>'

    def _link(self, page: str, link: str) -> str:
        """Pages to pages; other files of the project are copied beside them, folders listed."""
        if re.match(r"[a-z]+:", link) or link.startswith("#"):
            return link
        file, mark, part = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), file))
        if target not in self._titles:
            self._files.add(target)
        made = (
            address(target)
            if target in self._titles
            else f"{target}/index.html"
            if (ROOT / target).is_dir()
            else target
        )
        return posixpath.relpath(made, posixpath.dirname(address(page)) or ".") + mark + part

    def _copy(self, file: str) -> None:
        source = ROOT / file
        if not source.is_dir():
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, self.folder / file)
            return
        names = sorted(path.name for path in source.iterdir() if path.is_file())
        for name in names:
            if f"{file}/{name}" not in self._titles:
                self._copy(f"{file}/{name}")
        links = "".join(
            f'<li><a href="{name.removesuffix(".md") + ".html" if name.endswith(".md") else name}">{name}</a></li>'
            for name in names
        )
        self._put(
            f"{file}/index.html", self._framed(f"{file}/index.html", file, f"<h1>{file}</h1><ul>{links}</ul>")
        )

    def _put(self, where: str, text: str) -> None:
        path = self.folder / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else ROOT / "site"
    sys.stdout.write(f"{Site(folder).write()} pages in {folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
