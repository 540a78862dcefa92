"""Would applying these manifests still do what the plan said? If not, nothing is applied."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import say
from lattice.cli.columns import Look
from lattice.cli.fleet import Sources, ask
from lattice.cli.names import Target
from lattice.cli.options import Connection
from lattice.cli.remote import Key, apply_planned
from lattice.cli.usage import Misused
from lattice.errors import Cause, Conflict, LatticeError, Malformed
from lattice.kinds.manifest import Document

if TYPE_CHECKING:
    from lattice.cli.apply import Options

DIFFERS = "PlanDiffers"  # the server's word for it
COMPARED = {"services": "name", "clusters": "name", "pools": "name", "wouldMove": "name", "unplaced": "name"}
_WORDS = {"services": "service", "clusters": "cluster", "pools": "cost of pool", "wouldMove": "move of", "unplaced": "verdict on"}


class Outdated(LatticeError):
    """The world moved on since the plan was made."""

    status, reason, exit_code = 409, "Conflict", 3


def hold_to(connection: Connection, asked: "Options", found: Sequence[tuple[Document, Target]]) -> dict[Key, tuple[str, Any]]:
    """The server plans again on what it has now, and refuses if the outcome is another. What it applied, unless that is only tried."""
    if asked.dry_run == "client":
        raise Misused("--plan needs the server, --dry-run=client asks none", fix="drop one of the two")
    wanted = _given(asked.plan)
    sources = Sources(connection, prices=asked.prices, latency=asked.latency, force=asked.force_conflicts, given=tuple(found))
    if asked.dry_run == "none":
        try:
            return apply_planned(sources, wanted["id"], asked.field_manager)
        except Conflict as e:
            if not any(cause.reason == DIFFERS for cause in e.causes):
                raise
    now = ask(sources, {"ask": "plan"})
    if now["id"] == wanted["id"] and asked.dry_run != "none":
        return {}
    if "services" not in wanted:
        _show(now)
    raise Outdated(
        f"the outcome is not that of plan {wanted['id']} any more, nothing was applied",
        causes=[Cause("", each) for each in differences(wanted, now)],
        fix=f"look at the plan again; as things are now it is {now['id']}",
    )


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
        raise Malformed(f"is not a plan: {e}", where=plan, fix="keep one with `lattice plan -o json > FILE`") from e
    if not isinstance(found, dict) or found.get("ask") != "plan" or not isinstance(found.get("id"), str):
        raise Malformed("is not a plan", where=plan, fix="keep one with `lattice plan -o json > FILE`")
    return found


def _show(now: Mapping[str, Any]) -> None:
    from lattice.cli.fleet_tables import plan_lines

    say.note("\n".join(["as things are now:", *(f"  {line}".rstrip() for line in plan_lines(now, Look()))]))


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is new, gone or different; nothing if only the id of the earlier plan is known."""
    found: list[str] = []
    for section, name in COMPARED.items() if "services" in then else ():
        before, after = ({each[name]: each for each in document[section]} for document in (then, now))
        differing = [each for each in sorted({*before, *after}) if before.get(each) != after.get(each)]
        found += [f"{_WORDS[section]} {each}: {_how(section, before.get(each), after.get(each))}" for each in differing]
    return found or (["the manifests are others than those that were planned"] if "services" in then else [])


def _how(section: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    if before is None or after is None:
        return "was not in the plan" if before is None else "is not in it any more"
    return f"was {_said(section, before)}, now {_said(section, after)}"


def _said(section: str, each: Mapping[str, Any]) -> str:
    from lattice.cli.fleet_tables import machines, where

    match section:
        case "services":
            return where(each["after"], wide=True)
        case "clusters":
            return machines(each)
        case "pools":
            return f"${each['after']['hourly']}/h"
        case "wouldMove":
            return "nowhere" if each["to"] is None else where(each["to"])
    return f"{each['verdict']} ({each['reason']})"
