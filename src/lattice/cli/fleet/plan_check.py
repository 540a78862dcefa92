"""Would applying these manifests still do what the plan said? If not, nothing is applied."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import Target
from lattice.cli.client.options import Connection
from lattice.cli.fleet.fleet_command import FleetInputs, run_query
from lattice.cli.fleet.queries import Key, apply_planned
from lattice.cli.output import messages as say
from lattice.cli.output.table_renderer import TableRenderer
from lattice.errors import Cause, Conflict, LatticeError, Malformed, UsageError
from lattice.kinds.meta.yaml_manifest import Document
from lattice.placement.queries.plan_diff import plan_differences

PLAN_DIFFERS, PLAN_UNKNOWN = "PlanDiffers", "PlanUnknown"  # the server's words for it


class PlanOutdated(LatticeError):
    """The world moved on since the plan was made."""

    status, reason, exit_code = 409, "Conflict", 3


@dataclass(frozen=True)
class PlanCheck:
    """The flags of `lattice apply` that say which plan must still hold, and how the server is to plan again."""

    plan: str
    dry_run: str
    field_manager: str
    force_conflicts: bool
    prices: tuple[str, ...]
    latency: str


def enforce_plan(
    connection: Connection, asked: PlanCheck, found: Sequence[tuple[Document, Target]]
) -> dict[Key, tuple[str, Any]]:
    """The server plans again on what it has now, and refuses if the outcome is another. What it applied, unless that is only tried."""
    if asked.dry_run == "client":
        raise UsageError("--plan needs the server, --dry-run=client asks none", fix="drop one of the two")
    wanted = _read_plan(asked.plan)
    sources = FleetInputs(
        connection,
        prices=asked.prices,
        latency=asked.latency,
        force=asked.force_conflicts,
        manifests=tuple(found),
    )
    try:
        if asked.dry_run == "none":
            return apply_planned(sources, wanted["id"], asked.field_manager)
        run_query(sources, {"ask": "plan", "expect": wanted["id"]})
    except Conflict as e:
        if not {PLAN_DIFFERS, PLAN_UNKNOWN} & {cause.reason for cause in e.causes}:
            raise
        raise PlanOutdated(
            f"{e.message}; nothing was applied",
            causes=[Cause("", each) for each in _differences(wanted, e, sources)],
            fix=e.fix,
        ) from e
    return {}


def _differences(wanted: Mapping[str, Any], refused: Conflict, sources: FleetInputs) -> list[str]:
    """Of a plan that was kept; else as far as the server remembers it; else only what the plan is now."""
    if "services" in wanted:
        return plan_differences(wanted, run_query(sources, {"ask": "plan"}))
    known = [cause.message for cause in refused.causes if cause.reason == PLAN_DIFFERS]
    if not known:
        _note_current_plan(run_query(sources, {"ask": "plan"}))
    return known or [cause.message for cause in refused.causes]


def _read_plan(plan: str) -> dict[str, Any]:
    """A plan that was kept, or only its id."""
    if plan.startswith("p-") and not Path(plan).exists():
        return {"id": plan}
    try:
        found = msgspec.json.decode(Path(plan).read_bytes())
    except OSError as e:
        fix = "give the id that `lattice plan` printed, or a file with what `lattice plan -o json` printed"
        raise UsageError(f"{plan!r} is neither the id of a plan nor a file", fix=fix) from e
    except msgspec.DecodeError as e:
        raise Malformed(
            f"is not a plan: {e}", where=plan, fix="keep one with `lattice plan -o json > FILE`"
        ) from e
    if not isinstance(found, dict) or found.get("ask") != "plan" or not isinstance(found.get("id"), str):
        raise Malformed("is not a plan", where=plan, fix="keep one with `lattice plan -o json > FILE`")
    return found


def _note_current_plan(now: Mapping[str, Any]) -> None:
    from lattice.cli.output.plan_tables import plan_lines

    say.note(
        "\n".join(
            ["as things are now:", *(f"  {line}".rstrip() for line in plan_lines(now, TableRenderer()))]
        )
    )
