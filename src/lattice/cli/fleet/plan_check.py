"""Would applying these manifests still do what the plan said? If not, nothing is applied."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli.output import messages as say
from lattice.cli.output.columns import Look
from lattice.cli.fleet.context import Sources, ask
from lattice.cli.client.kind_names import Target
from lattice.cli.client.options import Connection
from lattice.cli.fleet.queries import Key, apply_planned
from lattice.usage import Misused
from lattice.errors import Cause, Conflict, LatticeError, Malformed
from lattice.kinds.meta.yaml_manifest import Document
from lattice.placement.queries.plan_diff import differences

if TYPE_CHECKING:
    from lattice.cli.commands.apply import Options

DIFFERS, UNKNOWN = "PlanDiffers", "PlanUnknown"  # the server's words for it


class Outdated(LatticeError):
    """The world moved on since the plan was made."""

    status, reason, exit_code = 409, "Conflict", 3


def hold_to(
    connection: Connection, asked: "Options", found: Sequence[tuple[Document, Target]]
) -> dict[Key, tuple[str, Any]]:
    """The server plans again on what it has now, and refuses if the outcome is another. What it applied, unless that is only tried."""
    if asked.dry_run == "client":
        raise Misused("--plan needs the server, --dry-run=client asks none", fix="drop one of the two")
    wanted = _given(asked.plan)
    sources = Sources(
        connection,
        prices=asked.prices,
        latency=asked.latency,
        force=asked.force_conflicts,
        given=tuple(found),
    )
    try:
        if asked.dry_run == "none":
            return apply_planned(sources, wanted["id"], asked.field_manager)
        ask(sources, {"ask": "plan", "expect": wanted["id"]})
    except Conflict as e:
        if not {DIFFERS, UNKNOWN} & {cause.reason for cause in e.causes}:
            raise
        raise Outdated(
            f"{e.what}; nothing was applied",
            causes=[Cause("", each) for each in _differences(wanted, e, sources)],
            fix=e.fix,
        ) from e
    return {}


def _differences(wanted: Mapping[str, Any], refused: Conflict, sources: Sources) -> list[str]:
    """Of a plan that was kept; else as far as the server remembers it; else only what the plan is now."""
    if "services" in wanted:
        return differences(wanted, ask(sources, {"ask": "plan"}))
    known = [cause.message for cause in refused.causes if cause.reason == DIFFERS]
    if not known:
        _show(ask(sources, {"ask": "plan"}))
    return known or [cause.message for cause in refused.causes]


def _given(plan: str) -> dict[str, Any]:
    """A plan that was kept, or only its id."""
    if plan.startswith("p-") and not Path(plan).exists():
        return {"id": plan}
    try:
        found = msgspec.json.decode(Path(plan).read_bytes())
    except OSError as e:
        fix = "give the id that `lattice plan` printed, or a file with what `lattice plan -o json` printed"
        raise Misused(f"{plan!r} is neither the id of a plan nor a file", fix=fix) from e
    except msgspec.DecodeError as e:
        raise Malformed(
            f"is not a plan: {e}", where=plan, fix="keep one with `lattice plan -o json > FILE`"
        ) from e
    if not isinstance(found, dict) or found.get("ask") != "plan" or not isinstance(found.get("id"), str):
        raise Malformed("is not a plan", where=plan, fix="keep one with `lattice plan -o json > FILE`")
    return found


def _show(now: Mapping[str, Any]) -> None:
    from lattice.cli.output.plan_tables import plan_lines

    say.note("\n".join(["as things are now:", *(f"  {line}".rstrip() for line in plan_lines(now, Look()))]))
