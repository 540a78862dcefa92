"""GET …/top and …/spending: what the fleet uses at this moment, and what it has cost. Only the leader knows; other servers ask it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lattice.clock import Clock, stamp
from lattice.errors import Malformed
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.json_body import encode
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.access.authorization import Deed, authorize
from lattice.server.requests.call import Reply, User
from lattice.server.agents.leader_context import Leading
from lattice.server.live.overview import TABLES, Fleet
from lattice.server.agents.leader_proxy import Question, Relay
from lattice.server.live.spend_history import Spending, told
from lattice.server.live.logs import WorkLogs

PATH = f"/apis/{GROUP}/{VERSION}/top"
SPENDING = f"/apis/{GROUP}/{VERSION}/spending"
PATHS = frozenset({PATH, SPENDING})


@dataclass(frozen=True)
class Live:
    """`top?of=nodes,services` asks for some of the tables only; `spending?by=service` for what was paid, by service."""

    clock: Clock
    leading: Callable[[], Leading | None]
    relay: Relay
    worklogs: WorkLogs
    spending: Spending = field(default_factory=Spending)

    async def read(self, path: str, user: User, query: Mapping[str, str]) -> Reply:
        return await (self.top if path == PATH else self.spent)(user, query)

    async def spent(self, user: User, query: Mapping[str, str]) -> Reply:
        authorize(user, Deed("get", GROUP, "spending"), None)
        if self.leading() is None:
            return await self.relay.pass_on(Question(user, SPENDING, query))
        head = {"kind": "Spending", "apiVersion": f"{GROUP}/{VERSION}"}
        return Reply(encode(head | await told(self.spending, query.get("by", "pool"))))

    async def top(self, user: User, query: Mapping[str, str]) -> Reply:
        authorize(user, Deed("get", GROUP, "top"), None)
        wanted = _wanted(query.get("of", ""))
        leading = self.leading()
        if leading is None:
            return await self.relay.pass_on(Question(user, PATH, query))
        fleet = Fleet(
            self.clock.now(),
            leading.copy(LatticePool).all(),
            leading.copy(LatticeCluster).all(),
            leading.copy(LatticeNode).all(),
            leading.copy(LatticeService).all(),
            leading.copy(LatticeWorkload).all(),
            leading.copy(LatticeLedger).all(),
            leading.presence.get,
        )
        head = {
            "kind": "Top",
            "apiVersion": f"{GROUP}/{VERSION}",
            "at": stamp(fleet.now),
            "term": leading.term.number,
        }
        return Reply(
            await asyncio.to_thread(_written, head, fleet, wanted)
        )  # thousands of nodes take a while


def _written(head: dict[str, Any], fleet: Fleet, wanted: list[str]) -> bytes:
    return encode(head | {name: TABLES[name](fleet) for name in wanted})


def _wanted(text: str) -> list[str]:
    names = [word.strip() for word in text.split(",") if word.strip()] or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        raise Malformed(
            f"there is no table {unknown[0]!r}", where="of", fix=f"choose from {', '.join(TABLES)}"
        )
    return names
