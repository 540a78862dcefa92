"""The site is complete: Markdown is rendered correctly, and every link resolves."""

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from docs import figures, pictures, site
from docs.html import converted

CASES = {
    "a heading has the anchor that GitHub gives it": (
        "## What `why` says",
        '<h2 id="what-why-says">What <code>why</code> says</h2>',
    ),
    "the second of two equal headings is numbered": ("# A\n# A", '<h1 id="a">A</h1>\n<h1 id="a-1">A</h1>'),
    "lines of a paragraph are joined": ("one\ntwo", "<p>one two</p>"),
    "code is not read as anything else": ("`a*b*<c>`", "<p><code>a*b*&lt;c&gt;</code></p>"),
    "bold and italic": ("**a** *b* 2 * 3 * 4", "<p><strong>a</strong> <em>b</em> 2 * 3 * 4</p>"),
    "a link with a title": ('[`x`](y.md "row")', '<p><a href="y.md" title="row"><code>x</code></a></p>'),
    "an image": ("![what](a.svg)", '<p><img src="a.svg" alt="what"></p>'),
    "a list whose items go on below": ("- a\n  b\n- c", "<ul><li>a b</li><li>c</li></ul>"),
    "a list in a list": ("1. a\n   - b\n2. c", "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>"),
    "fenced text stays as it is": (
        "```sh\n# a | <b>\n\n```",
        '<pre class="sh"><code># a | &lt;b&gt;\n</code></pre>',
    ),
    "comments are left out": ("<!-- a\nb -->\nc", "<p>c</p>"),
}
TABLE = "| a | b |\n|---|--:|\n| x \\| y | 1 |"


@pytest.mark.parametrize(("text", "wanted"), CASES.values(), ids=CASES)
def test_markdown_becomes_html(text: str, wanted: str) -> None:
    assert converted(text) == wanted


def test_a_table_keeps_its_columns_and_escaped_bars() -> None:
    assert '<tr><td>x | y</td><td class="right">1</td></tr>' in converted(TABLE)


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.depth: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.links += [value for name in ("href", "src") if (value := given.get(name))]
        self.anchors |= {value for value in (given.get("id"),) if value}
        if tag not in ("meta", "link", "img"):
            self.depth.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.depth.pop() == tag


def read(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    assert page.depth == [], f"{path}: not everything is closed"
    return page


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert site.main([str(folder)]) == 0
    return folder


def test_every_link_of_the_site_resolves(built: Path) -> None:
    pages = {path: read(path) for path in built.rglob("*.html")}
    assert len(pages) >= len(site.pages())
    for path, page in pages.items():
        for link in page.links:
            if "://" in link:
                continue
            file, _, anchor = unquote(link).partition("#")
            target = (path.parent / file).resolve() if file else path
            assert target.is_file(), f"{path.relative_to(built)} links to {link}"
            assert not anchor or anchor in pages[target].anchors, (
                f"{path.relative_to(built)} links to {link}: no such heading"
            )


def test_every_page_is_on_the_site_with_its_title(built: Path) -> None:
    for page in site.pages():
        assert f"<title>{site.title(page)}"[:20] in (built / site.address(page)).read_text().replace(
            "&lt;", "<"
        ).replace("&#x27;", "'"), page


def test_pictures_are_up_to_date() -> None:
    assert [path.name for path in pictures.outdated()] == [], "run `make docs`"


def test_figures_are_up_to_date() -> None:
    found = {path: path.read_text() for path in figures.pages()}
    assert {"benchmarks.md", "operations.md", "comparison.md"} <= {path.name for path in found}
    assert [path.name for path, text in found.items() if figures.refreshed(text) != text] == [], (
        "run `make docs`"
    )


def test_outdated_or_missing_figure_is_detected() -> None:
    row = "first start of lattice up, until it answers"
    old = f'[1 ms](bench/results/latest.md "{row}")'
    assert figures.refreshed(old) == f'[{figures.measured("latest")[row]}](bench/results/latest.md "{row}")'
    with pytest.raises(KeyError):
        figures.refreshed('[1 ms](bench/results/latest.md "nobody measured this")')
