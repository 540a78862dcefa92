"""GET …/top: what the fleet uses at this moment. Only the leader hears its nodes; other servers ask it."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lattice.clock import Clock, stamp
from lattice.errors import Malformed
from lattice.kinds.base import GROUP, VERSION
from lattice.kinds.body import encode
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.server.authority import Deed, authorize
from lattice.server.call import Reply, User
from lattice.server.leading import Leading
from lattice.server.overview import TABLES, Fleet
from lattice.server.relay import Question, Relay
from lattice.server.worklogs import WorkLogs

PATH = f"/apis/{GROUP}/{VERSION}/top"


@dataclass(frozen=True)
class Live:
    """`?of=nodes,services` asks for some of the tables only."""

    clock: Clock
    leading: Callable[[], Leading | None]
    relay: Relay
    worklogs: WorkLogs

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
        head = {"kind": "Top", "apiVersion": f"{GROUP}/{VERSION}", "at": stamp(fleet.now), "term": leading.term.number}
        return Reply(await asyncio.to_thread(_written, head, fleet, wanted))  # thousands of nodes take a while


def _written(head: dict[str, Any], fleet: Fleet, wanted: list[str]) -> bytes:
    return encode(head | {name: TABLES[name](fleet) for name in wanted})


def _wanted(text: str) -> list[str]:
    names = [word.strip() for word in text.split(",") if word.strip()] or list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        raise Malformed(f"there is no table {unknown[0]!r}", where="of", fix=f"choose from {', '.join(TABLES)}")
    return names
