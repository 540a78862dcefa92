"""Is the outcome still that of an earlier plan, and if not, what is another now? The plans told lately are remembered for that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.errors import Cause, Conflict
from lattice.kinds.meta.json_body import encode
from lattice.placement.queries.plan_diff import SECTIONS, plan_differences

MAX_CACHED_BYTES = 8 << 20  # bytes of plans that are remembered
MAX_LISTED_DIFFERENCES = 20  # differences told
PLAN_DIFFERS_REASON, PLAN_UNKNOWN_REASON = "PlanDiffers", "PlanUnknown"

Document = Mapping[str, Any]


@dataclass
class PlanCache:
    """By their ids, the newest last; what is too old makes room."""

    _plans: dict[str, bytes] = field(default_factory=dict)

    def add(self, document: Document) -> None:
        name = document["id"]
        self._plans.pop(name, None)
        self._plans[name] = encode({each: document[each] for each in ("id", *SECTIONS)})
        while sum(map(len, self._plans.values())) > MAX_CACHED_BYTES:
            del self._plans[next(iter(self._plans))]

    def require_same_outcome(self, expected: str | Document, now: Document) -> None:
        """Refuses if the outcome is not that of the earlier plan, or of the plan with that id."""
        then = {"id": expected} if isinstance(expected, str) else expected
        name = then.get("id", "")
        if name == now["id"]:
            return
        if "services" not in then and name in self._plans:
            then = msgspec.json.decode(self._plans[name])
        what = f"the outcome is not that of plan {name} any more; as things are now it is {now['id']}"
        raise Conflict(what, fix="look at the plan again", causes=_causes(then, now))


def _causes(then: Document, now: Document) -> list[Cause]:
    if "services" not in then:
        return [Cause("expect", "what that plan was is not known here any more", PLAN_UNKNOWN_REASON)]
    found = plan_differences(then, now)
    more = (
        [f"and {len(found) - MAX_LISTED_DIFFERENCES:,} more"] if len(found) > MAX_LISTED_DIFFERENCES else []
    )
    return [Cause("expect", each, PLAN_DIFFERS_REASON) for each in [*found[:MAX_LISTED_DIFFERENCES], *more]]
