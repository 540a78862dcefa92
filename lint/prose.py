"""`python -m lint.prose`: length of sentences and people-pronouns in the documents and in `--help`.

A sentence has 20 words in the mean and 40 at most; *who*, *nobody* and *somebody* do not stand for a component.
"""

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

from lattice.cli.main import COMMANDS
from lint.language import PEOPLE

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "changes", "deploy", "examples")
MAX_WORDS, MEAN_WORDS, PEOPLE_PER_1000 = 40, 20.0, 0.5
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\[(\"'0-9-])|\n\s*\n|\n(?=\s*(?:[-*|#]|\d+\.) ?)")
CODE = re.compile(r"```.*?```|<!--.*?-->", re.DOTALL)


class Sentence(NamedTuple):
    where: str
    text: str

    @property
    def words(self) -> list[str]:
        plain = re.sub(r"\]\([^)]*\)", "]", re.sub(r"`[^`]*`", "code", self.text))
        return re.findall(r"[A-Za-z0-9][A-Za-z0-9'’-]*", plain)


def pages() -> list[Path]:
    folders = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *folders])


def sentences_of(text: str, where: str) -> Iterator[Sentence]:
    """Sentences of a Markdown page without its samples; a cell of a table and an item of a list count as one each."""
    for block in SENTENCE_END.split(CODE.sub("\n\n", text)):
        for cell in block.split("|") if block.lstrip().startswith("|") else [block]:
            for part in re.split(r"(?<=[.!?]) ", cell):
                if part.strip(" \n#*-"):
                    yield Sentence(where, " ".join(part.split()))


def document_sentences() -> Iterator[Sentence]:
    for path in pages():
        yield from sentences_of(path.read_text(), str(path.relative_to(ROOT)))


def help_sentences() -> Iterator[Sentence]:
    """What `--help` of every command and flag says."""
    for name, entry in COMMANDS.items():
        module, _, attribute = entry.target.partition(":")
        yield from help_of(getattr(importlib.import_module(module), attribute), f"lattice {name} --help")
        yield Sentence("lattice --help", entry.help)


def help_of(command: click.Command, where: str) -> Iterator[Sentence]:
    text = (command.help or "").split("\b")[0]
    yield from sentences_of(text, where)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield from sentences_of(parameter.help or "", f"{where} {parameter.opts[-1]}")
    if isinstance(command, click.Group):
        for name, child in command.commands.items():
            yield from help_of(child, f"{where.removesuffix(' --help')} {name} --help")


def findings(sentences: list[Sentence]) -> Iterator[str]:
    for sentence in sentences:
        if len(sentence.words) > MAX_WORDS:
            yield f"{sentence.where}: {len(sentence.words)} words in one sentence: {sentence.text[:90]!r}"
        people = sorted({word.lower() for word in sentence.words} & PEOPLE)
        if people and "?" not in sentence.text:
            yield f"{sentence.where}: {people[0]!r}: name the component or the user: {sentence.text[:90]!r}"


def main(_: list[str]) -> int:
    sentences = [*document_sentences(), *help_sentences()]
    running = [sentence for sentence in sentences if len(sentence.words) > 3]
    words = sum(len(sentence.words) for sentence in sentences)
    people = sum(word.lower() in PEOPLE for sentence in sentences for word in sentence.words)
    problems = list(findings(sentences))
    mean = sum(len(sentence.words) for sentence in running) / max(1, len(running))
    sys.stdout.write(f"{mean:8.1f}  <= {MEAN_WORDS:.0f}    words in a sentence, mean\n")
    sys.stdout.write(
        f"{1000 * people / words:8.1f}  <= {PEOPLE_PER_1000}   who, whom, nobody, somebody per 1,000 words\n"
    )
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems or mean > MEAN_WORDS else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
