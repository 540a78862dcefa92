"""The outcome of each fuzzed parser, read from the last lines of the fuzzer, as one table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

TAIL = 2000  # letters of what was said when something was found


@dataclass(frozen=True, slots=True)
class Outcome:
    parser: str
    inputs: int
    seconds: int
    reached: int  # branches of our code
    found: str  # what went wrong; empty if nothing did

    @property
    def row(self) -> str:
        verdict = "FOUND" if self.found else "nothing found"
        return f"| {self.parser} | {self.inputs:,} | {self.seconds} | {self.reached:,} | {verdict} |"


def outcome_of(parser: str, code: int, said: str) -> Outcome:
    """One that does not say that it is done has found something, whatever its code."""
    done = re.search(r"^Done (\d+) runs in (\d+) second", said, re.MULTILINE)
    marks = re.findall(r"^#(\d+)\t.*?cov: (\d+)", said, re.MULTILINE)
    inputs, reached = (int(each) for each in (marks[-1] if marks else ("0", "0")))
    found = said[-TAIL:] or f"ended with code {code}"
    if code or done is None:
        return Outcome(parser, inputs, 0, reached, found)
    return Outcome(parser, int(done[1]), int(done[2]), reached, "")


def table(outcomes: Sequence[Outcome]) -> str:
    total = sum(each.inputs for each in outcomes)
    count = sum(bool(each.found) for each in outcomes)
    rows = [
        "| parser | inputs | seconds | branches reached | |",
        "|---|---|---|---|---|",
        *(each.row for each in outcomes),
    ]
    told = [f"{each.parser}: {each.found}" for each in outcomes if each.found]
    return "\n".join(
        [*rows, "", f"{len(outcomes)} parsers, {total:,} inputs; {count} found something", *told]
    )
