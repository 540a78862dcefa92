"""Writes to a node what its agent says it is: as the leader, and only when it says something new."""

from dataclasses import dataclass, field

from lattice.clock import Clock
from lattice.errors import Conflict, Denied, NotFound
from lattice.kinds.node import LatticeNode
from lattice.kinds.nodeclass import LatticeNodeClass, Size
from lattice.kinds.stored import Object, pack, unpack
from lattice.server.joining import node_key, refuse_stranger
from lattice.server.leading import Leading, Refused
from lattice.server.registration import differs, problem, registered
from lattice.server.signing import Peer
from lattice.store.protocol import Put
from lattice.wire import agent_pb2 as pb

TRIES = 5
FICKLE, FICKLE_WITHIN = 10, 60.0  # so often within so many seconds


@dataclass
class Registrar:
    clock: Clock
    _registered: dict[str, list[float]] = field(default_factory=dict)  # by node: when it was last written

    async def register(self, leading: Leading, peer: Peer, hello: pb.Hello) -> int:
        """Written only if it differs, and only as the leader. The revision at which the node is as it says."""
        if wrong := problem(hello.registration):
            raise Refused("REGISTRATION", wrong)
        await leading.copy(LatticeNodeClass).wait_for()
        for attempt in range(1, TRIES + 1):
            entry = await leading.store.get(node_key(peer.node))
            node = unpack(entry.value, entry.revision) if entry else None
            try:
                refuse_stranger(peer, node)
            except (NotFound, Denied) as error:
                raise Refused("UNKNOWN_NODE", str(error)) from error
            assert entry is not None  # noqa: S101 - else it was refused
            assert node is not None  # noqa: S101
            after = registered(node, hello, _size(leading, node))
            if not differs(node, after):
                return entry.revision
            recent = self._refuse_fickle(peer.node)
            try:
                revision = await leading.commit([Put(entry.key, pack(LatticeNode.resource, after), entry.revision)])
            except Conflict:  # the nodes controller writes there too
                if attempt == TRIES:
                    raise
                continue
            self._registered[peer.node] = [*recent, self.clock.monotonic()]
            return revision
        raise AssertionError("unreachable")

    def _refuse_fickle(self, node: str) -> list[float]:
        """When it was written lately. Whoever says something else each time would keep the store busy."""
        now = self.clock.monotonic()
        recent = [at for at in self._registered.get(node, ()) if now - at < FICKLE_WITHIN]
        if len(recent) >= FICKLE:
            raise Refused("REGISTRATION", f"it said something else {FICKLE} times within {FICKLE_WITHIN:g} s")
        return recent


def _size(leading: Leading, node: Object) -> Size | None:
    spec = node.get("spec", {})
    found: LatticeNodeClass | None = leading.copy(LatticeNodeClass).get(f"/{spec.get('nodeClass', '')}")
    return None if found is None else found.spec.size_on(spec.get("provider", "")) or found.spec.size
