"""Writes to a node what its agent says it is: as the leader, and only when it says something new."""

import ipaddress
import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from lattice.clock import Clock, format_timestamp
from lattice.errors import Conflict, Denied, NotFound
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.selector import label_key_problem, label_value_problem
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.kinds.node import (
    AGENT_LABEL_PREFIX,
    QUARANTINED,
    LatticeNode,
    NodeAddress,
    NodeGpu,
    NodeStatus,
    PortRange,
)
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.join import node_key, verify_joined_key
from lattice.server.agents.leader_context import LeaderContext, NodeQuarantined, SessionRejected
from lattice.store.protocol import Entry, Put
from lattice.wire import agent_pb2 as pb
from lattice.wire.agent_pb2 import Hello, Registration

MAX_AMOUNT_BY_RESOURCE = {"cpu": 10_000_000, "gpu": 1_000_000}  # 10,000 cores, 1,000 GPUs
DEFAULT_MAX_AMOUNT = 1 << 60
MAX_LIST_ENTRIES = 64  # resources, labels, addresses, GPUs
RUNTIMES = frozenset({"process", "container", "fake"})
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


MAX_COMMIT_ATTEMPTS = 5
MAX_CHANGES_PER_WINDOW, CHANGE_WINDOW_S = 10, 60.0  # so often within so many seconds


def registration_problem(said: Registration) -> str:
    """What is wrong with it, in one sentence; "" if nothing is."""
    return capacity_problem(said) or _labels_problem(said) or _runtime_and_address_problem(said)


def capacity_problem(said: Registration) -> str:
    """What is wrong with the room that it claims to have."""
    if (
        max(len(said.capacity), len(said.labels), len(said.addresses), len(said.gpus), len(said.runtimes))
        > MAX_LIST_ENTRIES
    ):
        return f"it lists more than {MAX_LIST_ENTRIES} of one thing"
    for name, amount in (*said.capacity.items(), *said.reserved.items()):
        if wrong := label_key_problem(name):
            return f'resource "{name[:80]}": {wrong}'
        if not 0 <= amount <= MAX_AMOUNT_BY_RESOURCE.get(name, DEFAULT_MAX_AMOUNT):
            return f"{name} is {amount}, which no machine has: it must be 0 to {MAX_AMOUNT_BY_RESOURCE.get(name, DEFAULT_MAX_AMOUNT)}"
    for name, amount in said.reserved.items():
        if amount > said.capacity.get(name, 0):
            return f"{amount} of {name} are reserved, and there are {said.capacity.get(name, 0)}"
    return ""


def _labels_problem(said: Registration) -> str:
    for key, value in said.labels.items():
        if not key.startswith(AGENT_LABEL_PREFIX):
            return f'an agent may only set labels {AGENT_LABEL_PREFIX}*, not "{key[:80]}"; others come with the join token or from an administrator'
        if wrong := label_key_problem(key) or label_value_problem(value):
            return f'label "{key[:80]}": {wrong}'
    return ""


def _runtime_and_address_problem(said: Registration) -> str:
    if unknown := sorted(set(said.runtimes) - RUNTIMES):
        return f'there is no runtime "{unknown[0][:80]}"'
    if (said.first_port or said.last_port) and not 1 <= said.first_port <= said.last_port <= 65535:
        return f"{said.first_port} to {said.last_port} is no range of ports"
    for gpu in said.gpus:
        if not gpu.model or len(gpu.model) > 63 or gpu.milli_free > 1000:
            return f'"{gpu.model[:80]}" with {gpu.milli_free} thousandths free is no GPU'
    for each in said.addresses:
        if each.type not in ("InternalIP", "ExternalIP", "Hostname") or not _is_address(
            each.type, each.address
        ):
            return f'"{each.address[:80]}" is no {each.type[:20] or "address"}'
    return ""


def _is_address(kind: str, text: str) -> bool:
    if kind == "Hostname":
        return _HOST.fullmatch(text) is not None
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def apply_registration(node: Object, hello: Hello, size: MachineSize | None = None) -> Object:
    """The node with what its agent said; everything else is as it was. A machine that was made from a class has no more room than that."""
    said, metadata = hello.registration, node["metadata"]
    kept = {
        key: value
        for key, value in metadata.get("labels", {}).items()
        if not key.startswith(AGENT_LABEL_PREFIX)
    }
    labels = {**kept, **{key: said.labels[key] for key in sorted(said.labels)}}
    others = {name: value for name, value in metadata.items() if name != "labels"}
    before = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    conditions = tuple(each for each in before.conditions if each.type != QUARANTINED)
    known = {"conditions": conditions, "workloads": before.workloads or 0}
    status = msgspec.to_builtins(msgspec.structs.replace(before, **known, **_status(hello, size)))
    return {**node, "metadata": {**others, **({"labels": labels} if labels else {})}, "status": status}


def with_quarantine_condition(node: Object, why: str, now: str) -> Object | None:
    """The node with the mark that nothing is to be put there; None if it has that already, whatever the reason."""
    before = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    if any(each.type == QUARANTINED for each in before.conditions):
        return None
    mark = Condition(
        type=QUARANTINED, status="True", reason="ImpossibleRoom", message=why, last_transition_time=now
    )
    status = msgspec.structs.replace(before, conditions=(*before.conditions, mark))
    return {**node, "status": msgspec.to_builtins(status)}


def _status(hello: Hello, size: MachineSize | None) -> dict[str, object]:
    said = hello.registration
    capacity = {name: said.capacity[name] for name in sorted(said.capacity)}
    reserved = {name: said.reserved[name] for name in sorted(said.reserved)}
    gpus = tuple(NodeGpu(model=each.model, milli_free=each.milli_free) for each in said.gpus)
    most = {} if size is None else _size_limits(size)
    return {
        "capacity": capacity,
        "reserved": reserved,
        "allocatable": {
            name: min(amount - reserved.get(name, 0), most.get(name, amount))
            for name, amount in capacity.items()
        },
        "gpus": gpus if size is None else gpus[: size.gpu // 1000],
        "addresses": tuple(NodeAddress(type=each.type, address=each.address) for each in said.addresses),  # type: ignore[arg-type]
        "runtimes": tuple(sorted(said.runtimes)),
        "port_range": PortRange(first=said.first_port, last=said.last_port) if said.first_port else None,
        "agent_version": hello.version[:64],
    }


def _size_limits(size: MachineSize) -> dict[str, int]:
    """What a class leaves open does not limit; GPUs that it does not have are not there."""
    stated = {
        name: amount
        for name, amount in (("cpu", size.millicores), ("memory", size.memory), ("storage", size.storage))
        if amount
    }
    return {**stated, "gpu": size.gpu}


def differs(before: Object, after: Object) -> bool:
    """Whether there is anything to write: defaults that are left out and defaults that are spelt out are the same."""
    return _content(before) != _content(after)


def _content(node: Object) -> tuple[object, object]:
    return node["metadata"].get("labels", {}), msgspec.convert(
        node.get("status", {}), NodeStatus, strict=False
    )


@dataclass
class Registrar:
    clock: Clock
    _write_times: dict[str, list[float]] = field(default_factory=dict)  # by node: when it was last written

    async def register(self, leading: LeaderContext, peer: NodeIdentity, hello: pb.Hello) -> int:
        """Written only if it differs, and only as the leader. The revision at which the node is as it says."""
        if wrong := capacity_problem(hello.registration):
            await self._quarantine(leading, peer, wrong)
        if wrong := registration_problem(hello.registration):
            raise SessionRejected("REGISTRATION", wrong)
        await leading.cache(LatticeNodeClass).wait_for()
        for attempt in range(1, MAX_COMMIT_ATTEMPTS + 1):
            entry, node = await self._verified_node(leading, peer)
            after = apply_registration(node, hello, _size(leading, node))
            if not differs(node, after):
                return entry.revision
            recent = self._recent_writes(peer.node)
            if len(recent) >= MAX_CHANGES_PER_WINDOW:
                await self._quarantine(
                    leading,
                    peer,
                    f"it said something else {MAX_CHANGES_PER_WINDOW} times within {CHANGE_WINDOW_S:g} s",
                )
            try:
                revision = await leading.commit(
                    [Put(entry.key, pack(LatticeNode.resource, after), entry.revision)]
                )
            except Conflict:  # the nodes controller writes there too
                if attempt == MAX_COMMIT_ATTEMPTS:
                    raise
                continue
            self._write_times[peer.node] = [*recent, self.clock.monotonic()]
            return revision
        raise AssertionError("unreachable")

    async def _verified_node(self, leading: LeaderContext, peer: NodeIdentity) -> tuple[Entry, Object]:
        entry = await leading.store.get(node_key(peer.node))
        node = unpack(entry.value, entry.revision) if entry else None
        try:
            verify_joined_key(peer, node)
        except (NotFound, Denied) as error:
            raise SessionRejected("UNKNOWN_NODE", str(error)) from error
        assert entry is not None  # noqa: S101 - else it was refused
        assert node is not None  # noqa: S101
        return entry, node

    async def _quarantine(self, leading: LeaderContext, peer: NodeIdentity, why: str) -> NoReturn:
        """Nothing is put on its node until it registers as something that can be. Written once, however often it tries."""
        entry, node = await self._verified_node(leading, peer)
        if (marked := with_quarantine_condition(node, why, format_timestamp(self.clock.now()))) is not None:
            with suppress(Conflict):  # it will try again
                await leading.commit([Put(entry.key, pack(LatticeNode.resource, marked), entry.revision)])
        raise NodeQuarantined("REGISTRATION", why)

    def _recent_writes(self, node: str) -> list[float]:
        """When it was written lately. Whoever says something else each time would keep the store busy."""
        now = self.clock.monotonic()
        return [at for at in self._write_times.get(node, ()) if now - at < CHANGE_WINDOW_S]


def _size(leading: LeaderContext, node: Object) -> MachineSize | None:
    spec = node.get("spec", {})
    found: LatticeNodeClass | None = leading.cache(LatticeNodeClass).get(f"/{spec.get('nodeClass', '')}")
    return None if found is None else found.spec.size_on(spec.get("provider", "")) or found.spec.default_size
