"""The cache of recent plans, and the check that a plan still has the outcome of an earlier plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from lattice.errors import Cause, Conflict
from lattice.kinds.meta.json_body import encode
from lattice.placement.queries.plan_diff import SECTIONS, plan_differences

# Bytes of all cached plans together, as JSON.
MAX_CACHED_BYTES = 8 << 20
# Differences that the error of a changed plan lists.
MAX_LISTED_DIFFERENCES = 20
PLAN_DIFFERS_REASON, PLAN_UNKNOWN_REASON = "PlanDiffers", "PlanUnknown"

Document = Mapping[str, Any]


@dataclass
class PlanCache:
    """Recent plans by id, the newest last; the cache drops the oldest plans beyond MAX_CACHED_BYTES."""

    _plans: dict[str, bytes] = field(default_factory=dict)

    def add(self, document: Document) -> None:
        plan_id = document["id"]
        self._plans.pop(plan_id, None)
        self._plans[plan_id] = encode({section: document[section] for section in ("id", *SECTIONS)})
        while sum(map(len, self._plans.values())) > MAX_CACHED_BYTES:
            del self._plans[next(iter(self._plans))]

    def require_same_outcome(self, expected: str | Document, current_plan: Document) -> None:
        """Raise Conflict with the differences if the current plan has another id than the expected plan.

        `expected` is the id of a plan or the plan itself.
        """
        previous_plan = {"id": expected} if isinstance(expected, str) else expected
        plan_id = previous_plan.get("id", "")
        if plan_id == current_plan["id"]:
            return
        if "services" not in previous_plan and plan_id in self._plans:
            previous_plan = msgspec.json.decode(self._plans[plan_id])
        problem = f"the outcome no longer equals plan {plan_id}; the current plan is {current_plan['id']}"
        if "services" not in previous_plan:
            causes = [
                Cause(
                    "expect",
                    "this server does not have the plan: it is another server's, too old, or mistyped",
                    PLAN_UNKNOWN_REASON,
                )
            ]
        else:
            differences = plan_differences(previous_plan, current_plan)
            listed = differences[:MAX_LISTED_DIFFERENCES]
            if len(differences) > MAX_LISTED_DIFFERENCES:
                listed = [*listed, f"and {len(differences) - MAX_LISTED_DIFFERENCES:,} more"]
            causes = [Cause("expect", difference, PLAN_DIFFERS_REASON) for difference in listed]
        raise Conflict(problem, fix="run `lattice plan` again and review the result", causes=causes)
