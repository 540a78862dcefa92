"""`python -m docs.pictures`: draws the output of two commands as pictures for the README."""

import os
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).parent / "images"
WORLD = "examples/worlds/seed-000"
# Pixels, for a monospaced font of 13 pixels.
CHARACTER, LINE, MARGIN, BAR = 8.0, 19, 20, 34
COLOURS = {"$": "#e6edf3", "+": "#7ee787", "~": "#f2cc60", "-": "#ff7b72", "!": "#f2cc60"}
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
# A space that no viewer collapses.
BLANK = "\u00a0"
HEADS = ("SERVICE", "CLUSTER", "POOL", "BUDGET", "REPLICA")


class Picture(NamedTuple):
    name: str
    command: str
    # Prefixes of omitted lines.
    left_out: tuple[str, ...] = ()


PICTURES = (
    Picture("plan", f"lattice plan --world {WORLD}", ("plan p-",)),
    Picture("why", f"lattice why service/api-gateway --world {WORLD}"),
)


def printed(command: str) -> list[str]:
    words = [sys.executable, "-m", "lattice.cli.main", *command.split()[1:]]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "140"}
    return (
        subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        .stdout.rstrip()
        .splitlines()
    )


def drawn(picture: Picture) -> str:
    output = "\n".join(
        line for line in printed(picture.command) if not line.startswith(picture.left_out or "\n")
    )
    lines = [f"$ {picture.command}", *output.rstrip().splitlines()]
    width = int(max(map(len, lines)) * CHARACTER + 2 * MARGIN)
    height = BAR + len(lines) * LINE + MARGIN
    return "\n".join([*_frame(width, height, picture.command), *_texts(lines), "</svg>"]) + "\n"


def _frame(width: int, height: int, command: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img">'
    )
    yield f"<title>What {escape(command)} prints</title>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840")):
        yield f'<circle cx="{MARGIN + 16 * index}" cy="17" r="5" fill="{colour}"/>'


def _texts(lines: list[str]) -> Iterator[str]:
    yield f'<g font-family="{FONTS}" font-size="13">'
    for number, line in enumerate(lines):
        if line.strip():
            # Columns stay aligned in any font.
            length = f'textLength="{len(line) * CHARACTER:g}" lengthAdjust="spacing"'
            shown, down = escape(line.replace(" ", BLANK)), BAR + LINE * (number + 1) - 5
            yield f'<text x="{MARGIN}" y="{down}" fill="{_colour(line)}" {length}>{shown}</text>'
    yield "</g>"


def _colour(line: str) -> str:
    if line.strip().split(" ")[0] in HEADS:
        return "#8b949e"
    return COLOURS.get(line[0], "#c9d1d9")


def outdated() -> list[Path]:
    files = {IMAGES / f"{picture.name}.svg": drawn(picture) for picture in PICTURES}
    return [path for path, text in files.items() if not path.exists() or path.read_text() != text]


def main() -> int:
    IMAGES.mkdir(exist_ok=True)
    for picture in PICTURES:
        (IMAGES / f"{picture.name}.svg").write_text(drawn(picture))
    return 0


if __name__ == "__main__":
    sys.exit(main())
