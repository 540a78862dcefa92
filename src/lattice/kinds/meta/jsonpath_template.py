"""kubectl's `-o jsonpath` templates: text with paths in braces, and ranges over the values of a path."""

import re
from dataclasses import dataclass, field
from typing import Any

from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.jsonpath import QUOTED, Path, Reader, compile_path, unescaped

_KEYWORD = re.compile(r"(range|end)(?=[\s}])\s*")


@dataclass(slots=True)
class Range:
    """A template body that is rendered once per value of the path."""

    path: Path
    body: "list[str | Path | Range]" = field(default_factory=list)


Piece = str | Path | Range


@dataclass(frozen=True, slots=True)
class Template:
    """A compiled template."""

    pieces: list[Piece]

    def render(self, value: Any) -> str:
        """Render the template for an object."""
        return "".join(_render(self.pieces, value, value))


def compile_template(text: str) -> Template:
    r"""Compile a template such as `{.items[*].metadata.name}{"\\n"}`; a text without braces is one path."""
    if "{" not in text:
        return Template([compile_path(text)])
    reader = Reader(text)
    stack: list[list[Piece]] = [[]]
    while not reader.at_end():
        brace = text.find("{", reader.position)
        stop = brace if brace >= 0 else len(text)
        if stop > reader.position:
            stack[-1].append(text[reader.position : stop])
        reader.position = stop + 1 if brace >= 0 else stop
        if brace >= 0:
            _parse_braces(reader, stack)
    if len(stack) > 1:
        raise reader.problem("expected {end} for every {range}")
    return Template(stack[0])


def _parse_braces(reader: Reader, stack: list[list[Piece]]) -> None:
    """Parse the content of braces: literals and paths, or the start or end of a range."""
    while True:
        reader.skip_blanks()
        if reader.take("}"):
            return
        if word := _KEYWORD.match(reader.text, reader.position):
            _parse_keyword(word, reader, stack)
        elif quoted := QUOTED.match(reader.text, reader.position):
            reader.position = quoted.end()
            stack[-1].append(unescaped(quoted[1] if quoted[1] is not None else quoted[2]))
        else:
            start = reader.position
            stack[-1].append(reader.path(relaxed=True))
            # An empty path means that the text at the position is no path.
            if reader.position == start:
                raise reader.problem("expected a path, a quoted text, range or end")


def _parse_keyword(word: re.Match[str], reader: Reader, stack: list[list[Piece]]) -> None:
    if word[1] == "range":
        reader.position = word.end()
        loop = Range(reader.path(relaxed=True))
        stack[-1].append(loop)
        stack.append(loop.body)
        return
    if len(stack) == 1:
        raise reader.problem("this {end} has no {range}")
    reader.position = word.end()
    stack.pop()


def _render(pieces: list[Piece], root: Any, current: Any) -> list[str]:
    out: list[str] = []
    for piece in pieces:
        if isinstance(piece, str):
            out.append(piece)
        elif isinstance(piece, Path):
            values = piece.find(root if piece.rooted else current)
            out.append(" ".join(value_text(value) for value in values))
        else:
            for value in piece.path.find(root if piece.path.rooted else current):
                out.extend(_render(piece.body, root, value))
    return out


def value_text(value: Any) -> str:
    """A string unchanged, any other value as JSON."""
    return value if isinstance(value, str) else encode(value).decode()
