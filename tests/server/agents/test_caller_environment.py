"""Nodes get new environment variables of their workloads when a callee moves, although the workloads are
unchanged."""

from build.agent_world import a_sleeping_workload, applied, leading_server
from build.scripted_agent import ScriptedAgent, peer

from lattice.controllers.runtime.object_writes import with_status
from lattice.kinds.agreement import AgreementStatus, Endpoint, LatticeAgreement
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import Name, Pair, build_agreement, environment
from lattice.store.protocol import Delete, Key

PAIR = Pair(Name("default", "web"), Name("default", "api"))
KEY = Key(LatticeAgreement.resource.id, "default", PAIR.object_name)


def at(*addresses: str) -> AgreementStatus:
    return AgreementStatus(
        active=True, endpoints=tuple(Endpoint(address=address, port=80) for address in addresses)
    )


async def test_callers_get_changed_endpoints_of_callee() -> None:
    async with leading_server("n1", "n2") as (leader, clock):
        assert leader.context is not None
        agreements = leader.context.cache(LatticeAgreement)

        def caller_environment(workload: LatticeWorkload) -> dict[str, str]:
            return environment(agreements.objects("default")) if workload.spec.service == "web" else {}

        leader.links.environment = caller_environment
        for name, service in (("web-0", "web"), ("other", "")):
            await leader.add(a_sleeping_workload(name, service=service))
            await leader.bind(name, applied("n1"))
        await clock.advance(0.1)
        agent = ScriptedAgent(leader, peer())
        await agent.welcomed()
        await leader.add(build_agreement(PAIR, at("10.0.0.1")))
        await clock.advance(0.1)
        assert await agent.orders() == [], "changes are batched"
        leader.links.sweep()
        [order] = await agent.orders()
        assert [(assignment.workload, assignment.env["API_HOST"]) for assignment in order.assignments] == [
            ("default/web-0", "10.0.0.1")
        ]
        for addresses in (("10.0.0.2",), ("10.0.0.2", "10.0.0.3")):
            entry = await leader.store.get(KEY)
            assert entry is not None
            await leader.store.commit([with_status(entry, at(*addresses))])
        await clock.advance(0.1)
        leader.links.sweep()
        [order] = await agent.orders()
        assert order.assignments[0].env["API_ENDPOINTS"] == "10.0.0.2:80,10.0.0.3:80"
        run = order.assignments[0].run
        await leader.store.commit([Delete(KEY)])
        await clock.advance(0.1)
        leader.links.sweep()
        [order] = await agent.orders()
        assert (dict(order.assignments[0].env), order.assignments[0].run) == ({}, run), (
            "the same run: nothing is started anew"
        )
        leader.links.sweep()
        assert await agent.orders() == []
