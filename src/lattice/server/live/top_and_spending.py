"""The live paths …/top, …/spending, …/problems and …/diagnosis: current usage, cost and problems of the fleet. A
follower forwards these requests to the leader."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import Malformed
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.agents.leader_proxy import ForwardedRequest, LeaderProxy
from lattice.server.live.diagnoses import diagnosis_document, fleet_objects, fleet_problems
from lattice.server.live.logs import WorkloadLogs
from lattice.server.live.spend_history import SpendHistory, spending_document
from lattice.server.live.usage_tables import TABLES, UsageSnapshot
from lattice.server.requests.call import Reply, User

TOP_PATH = f"/apis/{GROUP}/{VERSION}/top"
SPENDING_PATH = f"/apis/{GROUP}/{VERSION}/spending"
PROBLEMS_PATH = f"/apis/{GROUP}/{VERSION}/problems"
DIAGNOSIS_PATH = f"/apis/{GROUP}/{VERSION}/diagnosis"
LIVE_PATHS = frozenset({TOP_PATH, SPENDING_PATH, PROBLEMS_PATH, DIAGNOSIS_PATH})


@dataclass(frozen=True)
class UsageService:
    """Answers live requests. `top?of=nodes,services` selects tables; `spending?by=service` selects the
    grouping."""

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    leader_proxy: LeaderProxy
    workload_logs: WorkloadLogs
    spend_history: SpendHistory = field(default_factory=SpendHistory)

    async def read(self, path: str, user: User, query: Mapping[str, str]) -> Reply:
        readers = {
            TOP_PATH: self.read_top,
            SPENDING_PATH: self.read_spending,
            PROBLEMS_PATH: self.read_problems,
            DIAGNOSIS_PATH: self.read_diagnosis,
        }
        return await readers[path](user, query)

    async def read_problems(self, user: User, query: Mapping[str, str]) -> Reply:
        """What is wrong now, by severity."""
        authorize(user, RequestAttributes("get", GROUP, "problems"), None)
        leader = self.leader_context()
        if leader is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, PROBLEMS_PATH, query))
        now = self.clock.now()
        head = {"kind": "Problems", "apiVersion": f"{GROUP}/{VERSION}", "at": format_timestamp(now)}
        # With thousands of objects the list takes noticeable time, so a thread makes it.
        document = await asyncio.to_thread(fleet_problems, fleet_objects(leader), now)
        return Reply(encode(head | document))

    async def read_diagnosis(self, user: User, query: Mapping[str, str]) -> Reply:
        """Why the service or the workload of the query does not run."""
        authorize(user, RequestAttributes("get", GROUP, "diagnosis"), None)
        leader = self.leader_context()
        if leader is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, DIAGNOSIS_PATH, query))
        now = self.clock.now()
        head = {"kind": "Diagnosis", "apiVersion": f"{GROUP}/{VERSION}", "at": format_timestamp(now)}
        return Reply(encode(head | diagnosis_document(leader, query, now)))

    async def read_spending(self, user: User, query: Mapping[str, str]) -> Reply:
        """The spend history by pool, service or label."""
        authorize(user, RequestAttributes("get", GROUP, "spending"), None)
        if self.leader_context() is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, SPENDING_PATH, query))
        head = {"kind": "Spending", "apiVersion": f"{GROUP}/{VERSION}"}
        return Reply(encode(head | await spending_document(self.spend_history, query.get("by", "pool"))))

    async def read_top(self, user: User, query: Mapping[str, str]) -> Reply:
        """The usage tables of the fleet at this moment."""
        authorize(user, RequestAttributes("get", GROUP, "top"), None)
        # A follower rejects a malformed request itself.
        tables = [word.strip() for word in query.get("of", "").split(",") if word.strip()] or list(TABLES)
        if unknown := [name for name in tables if name not in TABLES]:
            raise Malformed(
                f"there is no table {unknown[0]!r}", where="of", fix=f"choose from {', '.join(TABLES)}"
            )
        leader = self.leader_context()
        if leader is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, TOP_PATH, query))
        snapshot = UsageSnapshot(
            self.clock.now(),
            leader.cache(LatticePool).objects(),
            leader.cache(LatticeCluster).objects(),
            leader.cache(LatticeNode).objects(),
            leader.cache(LatticeService).objects(),
            leader.cache(LatticeWorkload).objects(),
            leader.cache(LatticeLedger).objects(),
            leader.cache(LatticeNodeClass).objects(),
            leader.presence.get,
        )
        head = {
            "kind": "Top",
            "apiVersion": f"{GROUP}/{VERSION}",
            "at": format_timestamp(snapshot.now),
            "term": leader.term.number,
        }

        def encode_tables() -> bytes:
            return encode(head | {name: TABLES[name](snapshot) for name in tables})

        # With thousands of nodes the tables take noticeable time, so a thread builds them.
        return Reply(await asyncio.to_thread(encode_tables))
