"""Agreements are created by the first side, become active with the second, carry addresses, and are deleted
with the last."""

from build.control_plane import ControlPlane, revision_after, running_loops
from build.objects import a_service_with_resources, make_object

from lattice.controllers.services.agreements import AgreementController
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload

MAIN = {"main": {"command": ["true"]}}


WEB = a_service_with_resources("web", {"api": {"type": "Service"}})
API = a_service_with_resources("api", {"web": {"type": "Service", "direction": "inbound"}})


def a_replica_of_api(*, ready: bool) -> LatticeWorkload:
    status = {"binding": {"node": "n1"}, "ready": ready, "allocatedPorts": {"http": 31000}}
    return make_object(
        LatticeWorkload, "api-0", "default", spec={"containers": MAIN, "service": "api"}, status=status
    )


async def test_agreement_lifecycle() -> None:
    plane = ControlPlane()
    controller = AgreementController(await plane.new_term())

    async def seen() -> tuple[bool | None, str | None, list[str]] | None:
        await plane.clock.advance(1)
        found = await plane.get(LatticeAgreement, "web--api", "default")
        return found and (
            found.status.active,
            found.status.missing,
            [endpoint.address for endpoint in found.status.endpoints],
        )

    async with running_loops(controller.context, controller.loop()):
        await plane.put(
            make_object(
                LatticeNode, "n1", status={"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
            ),
            WEB,
        )
        assert await seen() == (False, "callee", [])
        await plane.put(API)
        assert await seen() == (True, None, [])
        await plane.put(a_replica_of_api(ready=False))
        assert await seen() == (True, None, [])
        await plane.put(a_replica_of_api(ready=True))
        assert await seen() == (True, None, ["10.0.0.1"])
        first, *later = await revision_after(plane, [40, 40])
        assert set(later) == {first}, "nothing is written while nothing changes"
        await plane.put(a_service_with_resources("api", {}))
        assert await seen() == (False, "callee", [])
        await plane.put(a_service_with_resources("web", {}))
        assert await seen() is None


async def test_deleted_agreement_is_recreated() -> None:
    plane = ControlPlane()
    await plane.put(WEB, API)
    controller = AgreementController(await plane.new_term())
    async with running_loops(controller.context, controller.loop()):
        await plane.clock.advance(1)
        await plane.remove(
            make_object(
                LatticeAgreement,
                "web--api",
                "default",
                spec={"caller": {"name": "web"}, "callee": {"name": "api"}},
            )
        )
        await plane.clock.advance(40)
        assert await plane.get(LatticeAgreement, "web--api", "default") is not None
