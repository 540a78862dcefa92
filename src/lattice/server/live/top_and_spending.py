"""GET …/top and …/spending: what the fleet uses at this moment, and what it has cost. Only the leader knows; other servers ask it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lattice.clock import Clock, format_timestamp
from lattice.errors import Malformed
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.json_body import encode
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.access.authorization import RequestAttributes, authorize
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.agents.leader_proxy import ForwardedRequest, LeaderProxy
from lattice.server.live.logs import WorkloadLogs
from lattice.server.live.spend_history import SpendHistory, spending_document
from lattice.server.live.usage_tables import TABLES, Fleet
from lattice.server.requests.call import Reply, User

TOP_PATH = f"/apis/{GROUP}/{VERSION}/top"
SPENDING_PATH = f"/apis/{GROUP}/{VERSION}/spending"
LIVE_PATHS = frozenset({TOP_PATH, SPENDING_PATH})


@dataclass(frozen=True)
class UsageService:
    """`top?of=nodes,services` asks for some of the tables only; `spending?by=service` for what was paid, by service."""

    clock: Clock
    leader_context: Callable[[], LeaderContext | None]
    leader_proxy: LeaderProxy
    workload_logs: WorkloadLogs
    spend_history: SpendHistory = field(default_factory=SpendHistory)

    async def read(self, path: str, user: User, query: Mapping[str, str]) -> Reply:
        return await (self.read_top if path == TOP_PATH else self.read_spending)(user, query)

    async def read_spending(self, user: User, query: Mapping[str, str]) -> Reply:
        authorize(user, RequestAttributes("get", GROUP, "spending"), None)
        if self.leader_context() is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, SPENDING_PATH, query))
        head = {"kind": "Spending", "apiVersion": f"{GROUP}/{VERSION}"}
        return Reply(encode(head | await spending_document(self.spend_history, query.get("by", "pool"))))

    async def read_top(self, user: User, query: Mapping[str, str]) -> Reply:
        authorize(user, RequestAttributes("get", GROUP, "top"), None)
        wanted = _requested_tables(query.get("of", ""))
        leading = self.leader_context()
        if leading is None:
            return await self.leader_proxy.forward(ForwardedRequest(user, TOP_PATH, query))
        fleet = Fleet(
            self.clock.now(),
            leading.cache(LatticePool).objects(),
            leading.cache(LatticeCluster).objects(),
            leading.cache(LatticeNode).objects(),
            leading.cache(LatticeService).objects(),
            leading.cache(LatticeWorkload).objects(),
            leading.cache(LatticeLedger).objects(),
            leading.presence.get,
        )
        head = {
            "kind": "Top",
            "apiVersion": f"{GROUP}/{VERSION}",
            "at": format_timestamp(fleet.now),
            "term": leading.term.number,
        }
        return Reply(
            await asyncio.to_thread(_encode_tables, head, fleet, wanted)
        )  # thousands of nodes take a while


def _encode_tables(head: dict[str, Any], fleet: Fleet, wanted: list[str]) -> bytes:
    return encode(head | {name: TABLES[name](fleet) for name in wanted})


def _requested_tables(text: str) -> list[str]:
    names = [word.strip() for word in text.split(",") if word.strip()] or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        raise Malformed(
            f"there is no table {unknown[0]!r}", where="of", fix=f"choose from {', '.join(TABLES)}"
        )
    return names
