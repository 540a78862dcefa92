"""Measured figures beside their aims: printed at once, saved as JSON and Markdown."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Figure:
    subject: str
    what: str
    # None: not measurable on the machine; `note` has the reason.
    value: float | None
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    note: str = ""

    @property
    def reached(self) -> bool | None:
        if self.value is None or (self.at_least is None and self.at_most is None):
            return None
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        aim = (
            f"≥ {_shown(self.at_least)}"
            if self.at_least is not None
            else f"≤ {_shown(self.at_most)}"
            if self.at_most is not None
            else ""
        )
        verdict = {True: "yes", False: "NO", None: ""}[self.reached]
        measured = "not measured" if self.value is None else f"{_shown(self.value)} {self.unit}".strip()
        return self.what, measured, aim, verdict, self.note


@dataclass
class Report:
    machine: dict[str, str | int]
    subject: str = ""
    figures: list[Figure] = field(default_factory=list)

    def begin(self, subject: str) -> None:
        self.subject = subject
        print(f"\n{subject}", flush=True)

    def add(
        self,
        name: str,
        value: float | None,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> None:
        figure = Figure(self.subject, name, value, unit, at_least, at_most, note)
        self.figures.append(figure)
        shown, measured, aim, verdict, remark = figure.cells
        print(f"  {shown:<58} {measured:>16}  {aim:<10} {verdict:<4} {remark}".rstrip(), flush=True)

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.reached is False]

    @property
    def unmeasured(self) -> list[Figure]:
        return [figure for figure in self.figures if figure.value is None]

    def save(self, name: str) -> None:
        RESULTS.mkdir(exist_ok=True)
        figures = [{**asdict(figure), "reached": figure.reached} for figure in self.figures]
        (RESULTS / f"{name}.json").write_text(
            json.dumps({"machine": self.machine, "figures": figures}, indent=1) + "\n"
        )
        (RESULTS / f"{name}.md").write_text(self.markdown())

    def markdown(self) -> str:
        facts = "; ".join(f"{fact} {value}" for fact, value in self.machine.items())
        lines = [
            "# Measured",
            "",
            facts + ".",
            "",
            "| subject | what | measured | aim | reached | note |",
            "|---|---|--:|--:|---|---|",
        ]
        lines += [f"| {figure.subject} | {' | '.join(figure.cells)} |" for figure in self.figures]
        return "\n".join(lines) + "\n"


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
