"""One command of the kubectl scenario with its expected output."""

import re
from dataclasses import dataclass

Patterns = str | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A line for the shell, as somebody would type it in the folder with the manifests.

    Patterns are regular expressions in which ^ and $ are the ends of a line. Success with an unexpected word on stderr is a failure,
    and so is a refusal whose message nobody looks at.
    """

    says: str  # a sentence, for the report
    run: str
    out: Patterns = ()
    err: Patterns = ()
    but: Patterns = ()  # must not be said, on stdout or stderr
    rc: int = 0
    who: str = "admin"
    since: tuple[int, int] = (1, 20)  # first kubectl that has the command or flag
    before: tuple[int, int] = (9, 0)  # first kubectl that no longer has it
    meanwhile: str = (
        ""  # `run` watches; this makes changes, again and again with a growing $N, until all is said
    )

    def applies_to(self, version: tuple[int, int, int]) -> bool:
        return self.since <= version[:2] < self.before


@dataclass(frozen=True, slots=True)
class Outcome:
    rc: int
    out: str
    err: str


def complaints(step: Step, outcome: Outcome) -> list[str]:
    """Everything in which the outcome differs from what the step demands."""
    wrong = [] if outcome.rc == step.rc else [f"exit code {outcome.rc}, not {step.rc}"]
    wrong += [f"stdout lacks {pattern!r}" for pattern in listed(step.out) if not found(pattern, outcome.out)]
    wrong += [f"stderr lacks {pattern!r}" for pattern in listed(step.err) if not found(pattern, outcome.err)]
    wrong += [
        f"says {pattern!r}" for pattern in listed(step.but) if found(pattern, outcome.out + outcome.err)
    ]
    if step.rc == 0 and not step.err and outcome.err:
        wrong.append("stderr is not empty")
    if step.rc and not step.err and not step.out:
        wrong.append("the step demands no message")
    return wrong


def listed(patterns: Patterns) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else patterns


def found(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.MULTILINE) is not None
