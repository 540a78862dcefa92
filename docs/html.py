"""Converts the Markdown of the pages to HTML: headings, paragraphs, lists, tables, fenced code and inline
marks."""

import re
from collections.abc import Callable, Iterator
from html import escape

# The address on the site of a link in a page.
Link = Callable[[str], str]

FENCE = re.compile(r"```(\w*)$")
HEADING = re.compile(r"(#{1,6}) +(.+?) *$")
ITEM = re.compile(r"( *)([-*]|\d+\.) +")
INLINE = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|!\[(?P<alt>[^\]]*)\]\((?P<image>[^)\s]+)\)"
    r'|\[(?P<text>(?:`[^`]*`|[^\]\[])*)\]\((?P<link>[^)\s]+)(?: "(?P<title>[^"]*)")?\)'
    r"|\*\*(?P<bold>(?:`[^`]*`|[^*])+)\*\*"
    r"|\*(?P<italic>[^*\s](?:[^*]*[^*\s])?)\*"
)


def anchor(heading: str) -> str:
    """The anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading).lower()).replace(" ", "-")


def converted(text: str, link: Link = str) -> str:
    """The body of a page as HTML."""
    return "\n".join(_Blocks(text, link).all())


def inline(text: str, link: Link = str) -> str:
    parts, end = [], 0
    for match in INLINE.finditer(text):
        parts += [escape(text[end : match.start()], quote=False), _inside(match, link)]
        end = match.end()
    return "".join([*parts, escape(text[end:], quote=False)])


def _inside(match: re.Match[str], link: Link) -> str:
    part = match.groupdict()
    if part["code"] is not None:
        return f"<code>{escape(part['code'], quote=False)}</code>"
    if part["image"] is not None:
        return f'<img src="{escape(link(part["image"]))}" alt="{escape(part["alt"])}">'
    if part["link"] is not None:
        title = f' title="{escape(part["title"])}"' if part["title"] else ""
        return f'<a href="{escape(link(part["link"]))}"{title}>{inline(part["text"], link)}</a>'
    tag = "strong" if part["bold"] is not None else "em"
    return f"<{tag}>{inline(part['bold'] or part['italic'], link)}</{tag}>"


class _Blocks:
    """Parses the blocks of a page from top to bottom."""

    def __init__(self, text: str, link: Link) -> None:
        self._lines = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL).splitlines()
        self._link = link
        self._at = 0
        self._anchors: dict[str, int] = {}

    def all(self) -> Iterator[str]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip():
                self._at += 1
            elif fence := FENCE.match(line):
                yield self._code(fence[1])
            elif heading := HEADING.match(line):
                yield self._heading(len(heading[1]), heading[2])
            elif line.startswith("|"):
                yield self._table()
            elif ITEM.match(line):
                yield self._list()
            else:
                yield f"<p>{inline(' '.join(self._paragraph()), self._link)}</p>"

    def _code(self, language: str) -> str:
        end = self._lines.index("```", self._at + 1)
        body = "\n".join(self._lines[self._at + 1 : end])
        self._at = end + 1
        return f'<pre class="{language or "text"}"><code>{escape(body, quote=False)}</code></pre>'

    def _heading(self, level: int, words: str) -> str:
        self._at += 1
        name = anchor(words)
        count = self._anchors.get(name, 0)
        self._anchors[name] = count + 1
        own = f"{name}-{count}" if count else name
        return f'<h{level} id="{own}">{inline(words, self._link)}</h{level}>'

    def _table(self) -> str:
        rows = []
        while self._at < len(self._lines) and self._lines[self._at].startswith("|"):
            line = self._lines[self._at].strip()
            rows.append([cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            self._at += 1
        heads, ruler, *body = rows
        right = [cell.endswith(":") for cell in ruler]
        top, rows_html = self._row("th", heads, right), "".join(self._row("td", row, right) for row in body)
        return f'<div class="wide"><table><thead>{top}</thead><tbody>{rows_html}</tbody></table></div>'

    def _row(self, tag: str, cells: list[str], right: list[bool]) -> str:
        marks = [' class="right"' if is_right else "" for is_right in right]
        return (
            "<tr>"
            + "".join(
                f"<{tag}{mark}>{inline(cell, self._link)}</{tag}>"
                for cell, mark in zip(cells, marks, strict=True)
            )
            + "</tr>"
        )

    def _list(self) -> str:
        """A list of a single depth; a deeper list inside an item is parsed recursively, and indented lines
        continue their item."""
        first = ITEM.match(self._lines[self._at])
        depth, tag = len(first[1]), "ul" if first[2] in "-*" else "ol"  # type: ignore[index]
        items: list[str] = []
        while self._at < len(self._lines):
            item = ITEM.match(self._lines[self._at])
            if item is None or len(item[1]) < depth:
                break
            if len(item[1]) > depth:
                items[-1] += self._list()
                continue
            self._lines[self._at] = self._lines[self._at][item.end() :]
            items.append(inline(" ".join(self._paragraph()), self._link))
        return f"<{tag}>" + "".join(f"<li>{text}</li>" for text in items) + f"</{tag}>"

    def _paragraph(self) -> Iterator[str]:
        """Lines up to an empty line or the start of another block."""
        yield self._lines[self._at].strip()
        self._at += 1
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if not line.strip() or line.startswith(("|", "```")) or HEADING.match(line) or ITEM.match(line):
                return
            yield line.strip()
            self._at += 1
