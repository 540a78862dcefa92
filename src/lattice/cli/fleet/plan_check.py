"""Check of `lattice apply --plan`: the server plans again, and an outcome that differs from the plan stops
the apply."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from lattice.cli.client.kind_names import Target
from lattice.cli.client.options import Connection
from lattice.cli.fleet.fleet_command import run_query
from lattice.cli.fleet.fleet_inputs import FleetInputs
from lattice.cli.fleet.queries import Key, apply_planned
from lattice.cli.output import messages as say
from lattice.cli.output.table_renderer import TableRenderer
from lattice.errors import Cause, Conflict, LatticeError, Malformed, UsageError
from lattice.kinds.meta.yaml_manifest import Document
from lattice.placement.queries.plan_diff import plan_differences

# Cause reasons of the server's Conflict.
PLAN_DIFFERS, PLAN_UNKNOWN = "PlanDiffers", "PlanUnknown"


class PlanOutdated(LatticeError):
    """The plan's outcome has changed since the plan was made."""

    status, reason, exit_code = 409, "Conflict", 3


@dataclass(frozen=True)
class PlanCheck:
    """Flags of `lattice apply` that name the plan and the inputs with which the server plans again."""

    plan: str
    dry_run: str
    field_manager: str
    force_conflicts: bool
    prices: tuple[str, ...]
    latency: str


def enforce_plan(
    connection: Connection, check: PlanCheck, manifests: Sequence[tuple[Document, Target]]
) -> dict[Key, tuple[str, Any]]:
    """Apply the manifests if the server's new plan has the id of the given plan, else raise PlanOutdated with
    the differences.

    Returns the results by object key; a dry run returns no results.
    """
    if check.dry_run == "client":
        raise UsageError("--plan needs a server, --dry-run=client uses none", fix="remove one of the two")
    plan = _read_plan(check.plan)
    sources = FleetInputs(
        connection,
        prices=check.prices,
        latency=check.latency,
        force=check.force_conflicts,
        manifests=tuple(manifests),
    )
    try:
        if check.dry_run == "none":
            return apply_planned(sources, plan["id"], check.field_manager)
        run_query(sources, {"ask": "plan", "expect": plan["id"]})
    # Other conflicts, such as another field manager, keep their own message.
    except Conflict as e:
        if not {PLAN_DIFFERS, PLAN_UNKNOWN} & {cause.reason for cause in e.causes}:
            raise
        raise PlanOutdated(
            f"{e.message}; nothing was applied",
            causes=[Cause("", difference) for difference in _differences(plan, e, sources)],
            fix=e.fix,
        ) from e
    return {}


def _differences(plan: Mapping[str, Any], conflict: Conflict, sources: FleetInputs) -> list[str]:
    """The differences between the given plan and the new plan: computed from a saved plan, else as the server
    recorded them. Without such a record, print the new plan and return the causes of the conflict."""
    # A saved plan holds everything to compare; an id alone does not.
    if "services" in plan:
        return plan_differences(plan, run_query(sources, {"ask": "plan"}))
    differences = [cause.message for cause in conflict.causes if cause.reason == PLAN_DIFFERS]
    if differences:
        return differences
    from lattice.cli.output.plan_tables import plan_lines

    lines = plan_lines(run_query(sources, {"ask": "plan"}), TableRenderer())
    say.note("\n".join(["the current plan:", *(f"  {line}".rstrip() for line in lines)]))
    return [cause.message for cause in conflict.causes]


def _read_plan(word: str) -> dict[str, Any]:
    """The saved plan of a file, or a plan with only its id."""
    # A file may be called p-something, too: an existing file wins.
    if word.startswith("p-") and not Path(word).exists():
        return {"id": word}
    try:
        document = msgspec.json.decode(Path(word).read_bytes())
    except OSError as e:
        fix = "pass the id that `lattice plan` printed, or a file with the output of `lattice plan -o json`"
        raise UsageError(f"{word!r} is neither the id of a plan nor a file", fix=fix) from e
    except msgspec.DecodeError as e:
        raise Malformed(
            f"is not a plan: {e}", where=word, fix="save one with `lattice plan -o json > FILE`"
        ) from e
    if (
        not isinstance(document, dict)
        or document.get("ask") != "plan"
        or not isinstance(document.get("id"), str)
    ):
        raise Malformed("is not a plan", where=word, fix="save one with `lattice plan -o json > FILE`")
    return document
