"""Declarations without a state of their own become Ready, and stay untouched afterwards."""

import pytest
from build.control_plane import ControlPlane, running_loops
from build.objects import make_object

from lattice.controllers.services.declarations import DeclarationController
from lattice.kinds.automation import AutomationRule
from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy

PENDING = {
    "observedGeneration": 0,
    "conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending"}],
}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (LatticeNodeClass, {"resources": {"cores": 1}}),
        (LatticePlacementPolicy, {"selector": {}}),
        (AutomationRule, {"when": {"budget": {"above": 80}}, "actions": [{"event": {"reason": "Spent"}}]}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
async def test_declaration_becomes_ready_and_follows_its_generation(kind: type[Kind], spec: object) -> None:
    plane = ControlPlane()
    controller = DeclarationController(await plane.new_term())
    async with running_loops(controller.context, controller.loop()):
        await plane.put(make_object(kind, "one", spec=spec, status=PENDING))
        await plane.clock.advance(1)
        obj = await plane.get(kind, "one")
        assert obj is not None
        status = obj.status  # type: ignore[attr-defined]
        assert status.observed_generation == obj.metadata.generation
        assert [(c.type, c.status, c.reason) for c in status.conditions] == [("Ready", "True", "InEffect")]
        # A second reconcile writes nothing.
        before = await plane.store.revision()
        await plane.clock.advance(60)
        assert await plane.store.revision() == before
