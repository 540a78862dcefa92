"""Report that declarations without a state of their own are in effect: node classes, placement policies and
automation rules.

Every object that a user declares begins with Ready=Unknown. Placement, supply and workload controllers report the
other kinds; a declaration of these three kinds is in effect as soon as the leader has read the object.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.automation import AutomationRule
from lattice.kinds.meta.base import Condition, Kind, Status, path_of
from lattice.kinds.meta.conditions import READY_CONDITION, is_true, merge_conditions
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.store.protocol import Change

DECLARATION_KINDS: dict[str, type[Kind]] = {
    kind.resource.plural: kind for kind in (LatticeNodeClass, LatticePlacementPolicy, AutomationRule)
}


@dataclass
class DeclarationController:
    """Write Ready=True and the observed generation of declarations; the key is `plural/name`."""

    context: ControllerContext
    name: str = "declarations"

    def loop(self) -> Loop:
        sources = tuple(
            Source(self.context.cache(kind), self._keys_for_change) for kind in DECLARATION_KINDS.values()
        )
        return Loop(
            self, self.context.clock, self.context.rng, self.list_keys, sources, Concurrency(workers=1)
        )

    def list_keys(self) -> Iterable[str]:
        return [
            f"{plural}{path_of(obj)}"
            for plural, kind in DECLARATION_KINDS.items()
            for obj in self.context.cache(kind).objects()
        ]

    def _keys_for_change(self, change: Change) -> Iterable[str]:
        return (f"{change.key.resource.partition('.')[0]}{change.key.path}",)

    async def reconcile(self, key: str) -> Requeue | None:
        plural, _, name = key.partition("/")
        cache = self.context.cache(DECLARATION_KINDS[plural])
        obj, entry = cache.get(f"/{name}"), cache.entry(f"/{name}")
        if obj is None or entry is None or obj.metadata.deletion_timestamp:
            return None
        status: Status = obj.status  # type: ignore[attr-defined]
        generation = obj.metadata.generation
        if status.observed_generation == generation and is_true(status.conditions, READY_CONDITION):
            return None
        ready = Condition(
            type=READY_CONDITION,
            status="True",
            reason="InEffect",
            message="the controllers use this declaration",
            observed_generation=generation,
        )
        conditions = merge_conditions(status.conditions, [ready], self.context.timestamp)
        status = msgspec.structs.replace(status, observed_generation=generation, conditions=conditions)
        await self.context.commit([with_status(entry, status)])
        return None
