"""Measured figures beside their aims and the figures of peers: printed at once, saved as JSON and Markdown."""

import json
from dataclasses import asdict, dataclass, field

from bench.report import RESULTS, Figure, _shown


@dataclass(frozen=True, slots=True)
class Peer:
    """The figure of a peer, published or measured on like hardware; `what` names the peer and what the figure
    includes."""

    figure: float
    what: str


@dataclass
class Ratios:
    machine: dict[str, str | int]
    rows: list[tuple[Figure, Peer | None]] = field(default_factory=list)

    def add(self, figure: Figure, peer: Peer | None = None) -> None:
        self.rows.append((figure, peer))
        shown, measured, aim, verdict, remark = figure.cells
        beside = f"{self.ratio(figure, peer)} {peer.what}" if peer else ""
        print(f"  {shown:<52} {measured:>17}  {aim:<11} {verdict:<4} {beside}  {remark}".rstrip(), flush=True)

    @staticmethod
    def ratio(figure: Figure, peer: Peer | None) -> str:
        if peer is None or figure.value is None:
            return ""
        return (
            f"{figure.value / peer.figure:,.1f} ×"
            if figure.value < 10 * peer.figure
            else f"{figure.value / peer.figure:,.0f} ×"
        )

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure, _ in self.rows if figure.reached is False]

    def save(self, name: str, included: str) -> None:
        RESULTS.mkdir(exist_ok=True)
        figures = [
            {**asdict(figure), "reached": figure.reached, "peer": asdict(peer) if peer else None}
            for figure, peer in self.rows
        ]
        document = {"machine": self.machine, "included": included.split("\n"), "figures": figures}
        (RESULTS / f"{name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
        (RESULTS / f"{name}.md").write_text(self.markdown(included))

    def markdown(self, included: str) -> str:
        facts = "; ".join(f"{fact} {value}" for fact, value in self.machine.items())
        lines = ["# Scheduling, measured", "", facts + ".", "", *included.split("\n"), ""]
        lines += [
            "| case | what | measured | aim | reached | beside a peer | note |",
            "|---|---|--:|--:|---|---|---|",
        ]
        for figure, peer in self.rows:
            name, measured, aim, verdict, note = figure.cells
            beside = f"{self.ratio(figure, peer)} {_shown(peer.figure)} ({peer.what})" if peer else ""
            lines.append(
                f"| {figure.subject} | {name} | {measured} | {aim} | {verdict} | {beside} | {note} |"
            )
        return "\n".join(lines) + "\n"
