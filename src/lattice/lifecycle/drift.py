"""Where does what a node says differ from what it was told? Orphans, what is missing, wrong state, wrong revision."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from lattice.lifecycle.workload import LIVE_STATES, Report

DriftType = Literal["orphan_on_agent", "missing_on_agent", "state_mismatch", "revision_mismatch"]


@dataclass(frozen=True, slots=True)
class AssignedWorkload:
    """What the node was told of one workload, and had time to do."""

    uid: str
    revision: str
    should_run: bool  # whether it is to run


@dataclass(frozen=True, slots=True)
class ReportedWorkload:
    uid: str
    report: Report


@dataclass(frozen=True, slots=True)
class Drift:
    """An orphan is stopped: it was replaced, deleted, or was never ours. The rest is for the workload's own look to mend."""

    workload: str
    type: DriftType
    message: str


def find_drift(assigned: Mapping[str, AssignedWorkload], held: Mapping[str, ReportedWorkload]) -> list[Drift]:
    """By path, sorted: the same words for the same state."""
    found = [*_orphans(assigned, held)]
    for path, wanted in assigned.items():
        has = held.get(path)
        if has is None or has.uid != wanted.uid:
            if wanted.should_run:
                found.append(Drift(path, "missing_on_agent", "the node does not have it"))
        elif has.report.revision != wanted.revision:
            found.append(
                Drift(
                    path,
                    "revision_mismatch",
                    f"revision is {has.report.revision or 'unknown'}, not {wanted.revision}",
                )
            )
        elif (has.report.state in LIVE_STATES) != wanted.should_run:
            want = "running" if wanted.should_run else "stopped"
            found.append(Drift(path, "state_mismatch", f"it is {has.report.state}, and is to be {want}"))
    return sorted(found, key=lambda each: (each.workload, each.type))


def _orphans(
    assigned: Mapping[str, AssignedWorkload], held: Mapping[str, ReportedWorkload]
) -> Iterator[Drift]:
    for path, has in held.items():
        wanted = assigned.get(path)
        if wanted is None:
            yield Drift(path, "orphan_on_agent", "the node was not told to have it")
        elif wanted.uid != has.uid:
            yield Drift(path, "orphan_on_agent", f"it is an earlier one of the same name, {has.uid}")
