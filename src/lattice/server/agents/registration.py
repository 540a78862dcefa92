"""Writes to a node what its agent says it is: as the leader, and only when it says something new."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

from lattice.clock import Clock, stamp
from lattice.errors import Conflict, Denied, NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass, Size
from lattice.kinds.meta.stored import Object, pack, unpack
from lattice.server.agents.join import node_key, refuse_stranger
from lattice.server.agents.leader_context import Leading, Quarantined, Refused
from lattice.server.agents.registration_part import differs, problem, quarantined, registered, room_problem
from lattice.server.access.node_certificates import Peer
from lattice.store.protocol import Entry, Put
from lattice.wire import agent_pb2 as pb

TRIES = 5
FICKLE, FICKLE_WITHIN = 10, 60.0  # so often within so many seconds


@dataclass
class Registrar:
    clock: Clock
    _registered: dict[str, list[float]] = field(default_factory=dict)  # by node: when it was last written

    async def register(self, leading: Leading, peer: Peer, hello: pb.Hello) -> int:
        """Written only if it differs, and only as the leader. The revision at which the node is as it says."""
        if wrong := room_problem(hello.registration):
            await self._quarantine(leading, peer, wrong)
        if wrong := problem(hello.registration):
            raise Refused("REGISTRATION", wrong)
        await leading.copy(LatticeNodeClass).wait_for()
        for attempt in range(1, TRIES + 1):
            entry, node = await self._known(leading, peer)
            after = registered(node, hello, _size(leading, node))
            if not differs(node, after):
                return entry.revision
            recent = self._recent(peer.node)
            if len(recent) >= FICKLE:
                await self._quarantine(
                    leading, peer, f"it said something else {FICKLE} times within {FICKLE_WITHIN:g} s"
                )
            try:
                revision = await leading.commit(
                    [Put(entry.key, pack(LatticeNode.resource, after), entry.revision)]
                )
            except Conflict:  # the nodes controller writes there too
                if attempt == TRIES:
                    raise
                continue
            self._registered[peer.node] = [*recent, self.clock.monotonic()]
            return revision
        raise AssertionError("unreachable")

    async def _known(self, leading: Leading, peer: Peer) -> tuple[Entry, Object]:
        entry = await leading.store.get(node_key(peer.node))
        node = unpack(entry.value, entry.revision) if entry else None
        try:
            refuse_stranger(peer, node)
        except (NotFound, Denied) as error:
            raise Refused("UNKNOWN_NODE", str(error)) from error
        assert entry is not None  # noqa: S101 - else it was refused
        assert node is not None  # noqa: S101
        return entry, node

    async def _quarantine(self, leading: Leading, peer: Peer, why: str) -> NoReturn:
        """Nothing is put on its node until it registers as something that can be. Written once, however often it tries."""
        entry, node = await self._known(leading, peer)
        if (marked := quarantined(node, why, stamp(self.clock.now()))) is not None:
            with suppress(Conflict):  # it will try again
                await leading.commit([Put(entry.key, pack(LatticeNode.resource, marked), entry.revision)])
        raise Quarantined("REGISTRATION", why)

    def _recent(self, node: str) -> list[float]:
        """When it was written lately. Whoever says something else each time would keep the store busy."""
        now = self.clock.monotonic()
        return [at for at in self._registered.get(node, ()) if now - at < FICKLE_WITHIN]


def _size(leading: Leading, node: Object) -> Size | None:
    spec = node.get("spec", {})
    found: LatticeNodeClass | None = leading.copy(LatticeNodeClass).get(f"/{spec.get('nodeClass', '')}")
    return None if found is None else found.spec.size_on(spec.get("provider", "")) or found.spec.size
