"""Lines of `why` about what keeps a service or a workload from running, and of `status` about all problems."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lattice.cli.output.render import age_since, cell
from lattice.cli.output.table_renderer import MAX_ROWS, TableRenderer, join_blocks
from lattice.kinds.meta.quantity import pluralize
from lattice.kinds.meta.timestamps import parse_time

JsonObject = Mapping[str, Any]
# Last lines of the log of a failed replica.
MAX_LOG_LINES = 10


def diagnosis_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """The answer, the blockers in the order of the road, and the replicas that are not ready."""
    now = parse_time(document["at"])
    name = f"service/{document['service']}" if "service" in document else f"workload/{document['workload']}"
    head = f"{name}: {document['answer']}"
    if "service" in document and document["since"] and now:
        words = "Available" if document["isAvailable"] else "Not available"
        head += f" {words} for {age_since(document['since'], now)}."
    blocks = [renderer.wrap(head, renderer.max_width)]
    blocks += [_blocker_lines(blocker, renderer, now) for blocker in document["blockers"]]
    replicas = document.get("replicas") or []
    if any(not replica["ready"] or replica["restarts"] for replica in replicas):
        blocks.append(_replica_table(document, renderer, now))
    return join_blocks(*blocks)


def _blocker_lines(blocker: JsonObject, renderer: TableRenderer, now: datetime | None) -> list[str]:
    title = blocker["stage"]
    if blocker.get("replicas", 0) > 1:
        title += f" ({pluralize(blocker['replicas'], 'replica')}, the first is {blocker['first']})"
    since = f", for {age_since(blocker['since'], now)}" if blocker["since"] and now else ""
    rows = [["cause", blocker["cause"]]]
    if blocker["need"]:
        rows.append(["need", f"{blocker['need']}; have {blocker['have']}"])
    if blocker["exitCode"] is not None and blocker["stage"] != "Succeeded":
        rows.append(["exit code", str(blocker["exitCode"])])
    if blocker["next"]:
        rows.append(["next", blocker["next"] + _in_time(blocker["nextAt"], now)])
    if blocker["fix"]:
        rows.append(["fix", blocker["fix"]])
    if blocker["command"]:
        rows.append(["see", f"`{blocker['command']}`"])
    lines = [title + since, *(f"  {line}" for line in renderer.aligned_rows(rows))]
    if blocker["log"]:
        log = blocker["log"].splitlines()[-MAX_LOG_LINES:]
        lines += ["  last lines of the log", *(f"    {cell(line)}" for line in log)]
    return lines


def _in_time(stamp: str, now: datetime | None) -> str:
    due = parse_time(stamp)
    if due is None or now is None:
        return ""
    seconds = (due - now).total_seconds()
    return f", in {seconds:.0f} s" if seconds > 0 else ", now"


def _replica_table(document: JsonObject, renderer: TableRenderer, now: datetime | None) -> list[str]:
    rows = []
    for replica in document["replicas"]:
        ports = ", ".join(f"{name} {number}" for name, number in sorted(replica["ports"].items()))
        since = age_since(replica["since"], now) if replica["since"] and now else ""
        next_in = _in_time(replica["nextAt"], now).removeprefix(", ")
        cells = (replica["name"], replica["state"], "yes" if replica["ready"] else "no", replica["node"])
        exit_code = "" if replica["exitCode"] is None else str(replica["exitCode"])
        rows.append([*cells, ports, str(replica["restarts"]), exit_code, since, next_in])
    heads = ["REPLICA", "STATE", "READY", "NODE", "PORTS", "RESTARTS", "EXIT", "SINCE", "NEXT"]
    lines = renderer.table(heads, rows, right_aligned=(5, 6))
    if document["replicasOmitted"]:
        lines.append(f"  and {document['replicasOmitted']:,} more replicas")
    return lines


def problem_lines(document: JsonObject, renderer: TableRenderer) -> list[str]:
    """The problems by severity, with cause, time and the next command."""
    problems, now = document["problems"], parse_time(document["at"])
    if not problems:
        return ["Nothing is wrong."]
    counts = ", ".join(f"{count} {severity}" for severity, count in document["counts"].items() if count)
    head = counts if document["isWrong"] else f"Nothing is wrong; {counts}"
    shown = problems if renderer.wide else problems[:MAX_ROWS]
    blocks: list[list[str]] = [[head]]
    for problem in shown:
        name = f"{problem['namespace']}/" if problem["namespace"] not in ("", "default") else ""
        kind, _, bare = problem["object"].partition("/")
        since = f", for {age_since(problem['since'], now)}" if problem["since"] and now else ""
        lines = [f"{problem['severity']:<9} {kind}/{name}{bare}: {problem['title']}{since}"]
        width = max(30, renderer.max_width - 10) if renderer.max_width else 0
        lines += [f"          {line}" for line in renderer.wrap(cell(problem["cause"]), width)]
        if problem["command"]:
            lines.append(f"          `{problem['command']}`")
        blocks.append(lines)
    if len(shown) < len(problems):
        blocks.append([f"and {len(problems) - len(shown):,} more; -o wide lists all"])
    return join_blocks(*blocks)
