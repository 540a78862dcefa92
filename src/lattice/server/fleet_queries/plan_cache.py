"""Is the outcome still that of an earlier plan, and if not, what is another now? The plans told lately are remembered for that."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.errors import Cause, Conflict
from lattice.kinds.meta.json_body import encode
from lattice.placement.queries.plan_diff import SECTIONS, differences

MOST = 8 << 20  # bytes of plans that are remembered
LISTED = 20  # differences told
DIFFERS, UNKNOWN = "PlanDiffers", "PlanUnknown"

Document = Mapping[str, Any]


@dataclass
class Plans:
    """By their ids, the newest last; what is too old makes room."""

    _kept: dict[str, bytes] = field(default_factory=dict)

    def keep(self, document: Document) -> None:
        name = document["id"]
        self._kept.pop(name, None)
        self._kept[name] = encode({each: document[each] for each in ("id", *SECTIONS)})
        while sum(map(len, self._kept.values())) > MOST:
            del self._kept[next(iter(self._kept))]

    def hold_to(self, expected: str | Document, now: Document) -> None:
        """Refuses if the outcome is not that of the earlier plan, or of the plan with that id."""
        then = {"id": expected} if isinstance(expected, str) else expected
        name = then.get("id", "")
        if name == now["id"]:
            return
        if "services" not in then and name in self._kept:
            then = msgspec.json.decode(self._kept[name])
        what = f"the outcome is not that of plan {name} any more; as things are now it is {now['id']}"
        raise Conflict(what, fix="look at the plan again", causes=_causes(then, now))


def _causes(then: Document, now: Document) -> list[Cause]:
    if "services" not in then:
        return [Cause("expect", "what that plan was is not known here any more", UNKNOWN)]
    found = differences(then, now)
    more = [f"and {len(found) - LISTED:,} more"] if len(found) > LISTED else []
    return [Cause("expect", each, DIFFERS) for each in [*found[:LISTED], *more]]
