"""The samples of the documents: files to save, commands with their output, and other samples; and the
comparison of printed and shown output."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.test_docs import FENCE, shown

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
    # Services that are applied together may reach placement together or one after the other: the number of
    # a service's cluster depends on it.
    words = re.sub(r"\b([a-z]+)-\d{3}(?=-|\b)", r"\1-NNN", words)
    return re.sub(r"^(\d+[smhd])+ (?=Normal|Warning)", "AGE ", words)


def difference(lines: list[str], output: str) -> str:
    """What is not as shown, in words; empty when it is. `…` is anything in a line, and any lines where it stands alone."""
    reply = "".join(f"{same_words(line)}\n" for line in output.splitlines() if line.strip())
    pattern = ""
    for line in lines:
        pattern += ANY_LINES if line.strip() == "…" else re.escape(same_words(line)).replace("…", ".*") + "\n"
        if not re.match(pattern, reply):
            return f"does not print (here): {line}"
    if re.fullmatch(pattern, reply):
        return ""
    matched = re.match(pattern, reply)
    assert matched is not None
    return (
        f"prints a line that the page leaves out without `…`: {reply[matched.end() :].partition(chr(10))[0]}"
    )
