"""The samples of the documents: files to save, commands with their output, and other samples; and the
comparison of printed and shown output."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.test_docs import FENCE, shown

# The name of a cluster: pool and number. `seed-000` is a folder of manifests.
CLUSTER = re.compile(r"\b(?!seed-)([a-z]+-)(\d{3})(?=-|\b)")
ANY_LINES = r"(?:.*\n)*?"
FILE = re.compile(r"# ([\w-]+\.(?:yaml|sh|py))\n")


class Sample(NamedTuple):
    """What stands between two fences."""

    page: str
    language: str
    text: str

    @property
    def file(self) -> str:
        """The name under which the reader saves it, where it begins with one."""
        name = FILE.match(self.text)
        return name[1] if name and self.language != "console" else ""


class Step(NamedTuple):
    """One line that a reader types, what the page says it prints, and the exit code that the page shows next."""

    command: str
    lines: list[str]
    code: int | None = None

    def may_end_with(self, code: int) -> bool:
        """Where the page shows none it is 0, except that a question about the fleet ends with its answer."""
        is_answer = self.command.startswith(("lattice plan", "lattice whatif", "lattice optimise"))
        return code == self.code if self.code is not None else code in ((0, 1, 2) if is_answer else (0,))


def samples(path: Path) -> Iterator[Sample]:
    for language, text in FENCE.findall(path.read_text()):
        yield Sample(shown(path), language, text)


def steps(path: Path) -> Iterator[Step]:
    for sample in samples(path):
        if sample.language == "console":
            yield from typed(sample.text)


def typed(text: str) -> Iterator[Step]:
    """Each command with what stands below it; `echo $?` tells of the one before."""
    results: list[Step] = []
    for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *lines = piece.splitlines()
        while command.endswith("\\"):
            command = f"{command}\n{lines.pop(0)}"
        if command == "echo $?":
            results[-1] = results[-1]._replace(code=int(lines[0]))
        else:
            results.append(Step(command, [line for line in lines if line.strip()]))
    yield from results


def files(path: Path) -> Iterator[tuple[str, str]]:
    """What the page tells the reader to save."""
    for sample in samples(path):
        if sample.file:
            yield sample.file, sample.text


def same_words(line: str) -> str:
    """Without what differs from run to run: ages, and the width of columns."""
    words = " ".join(re.sub(r"\b(\d+[smhd])+$", "AGE", line.strip()).split())
    return re.sub(r"^(\d+[smhd])+ (?=Normal|Warning)", "AGE ", words)


def _line_pattern(line: str, clusters: dict[str, str]) -> str:
    """Return a pattern for one line of a page; `clusters` maps a cluster of the page to its group in the pattern.

    Services that are applied together reach placement in any order, so a cluster can have another number than on the
    page. It has the same number wherever the page names it.
    """
    pattern, at = "", 0
    for match in CLUSTER.finditer(line):
        is_first = match[0] not in clusters
        group = clusters.setdefault(match[0], f"cluster_{len(clusters)}")
        number = rf"(?P<{group}>\d{{3}})" if is_first else f"(?P={group})"
        pattern += re.escape(line[at : match.start()] + match[1]) + number
        at = match.end()
    return (pattern + re.escape(line[at:])).replace("…", ".*") + "\n"


def difference(lines: list[str], output: str) -> str:
    """What is not as shown, in words; empty when it is. `…` is anything in a line, and any lines where it stands alone."""
    reply = "".join(f"{same_words(line)}\n" for line in output.splitlines() if line.strip())
    pattern = ""
    clusters: dict[str, str] = {}
    for line in lines:
        pattern += ANY_LINES if line.strip() == "…" else _line_pattern(same_words(line), clusters)
        if not re.match(pattern, reply):
            return f"does not print (here): {line}"
    if matched := re.fullmatch(pattern, reply):
        printed = {name.rpartition("-")[0] + matched[group] for name, group in clusters.items()}
        if len(printed) < len(clusters):
            return f"prints two clusters of the page as one: {', '.join(sorted(clusters))}"
        return ""
    matched = re.match(pattern, reply)
    assert matched is not None
    return (
        f"prints a line that the page leaves out without `…`: {reply[matched.end() :].partition(chr(10))[0]}"
    )
