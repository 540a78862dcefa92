"""Registration: the leader checks what an agent reports about its machine and writes changes to the node
object."""

import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec
import structlog

from lattice.clock import Clock
from lattice.errors import Conflict, Denied, NotFound
from lattice.kinds.container import parse_amounts
from lattice.kinds.meta.base import Condition
from lattice.kinds.meta.conditions import find_condition, without_condition
from lattice.kinds.meta.object_lifecycle import mark_for_deletion
from lattice.kinds.meta.selector import label_key_problem, label_value_problem
from lattice.kinds.meta.stored_encoding import Object, pack, unpack
from lattice.kinds.meta.timestamps import format_timestamp
from lattice.kinds.node import (
    AGENT_LABEL_PREFIX,
    NODE_FINALIZER,
    QUARANTINED,
    LatticeNode,
    NodeAddress,
    NodeGpu,
    NodeStatus,
    PortRange,
)
from lattice.kinds.node_class import LatticeNodeClass, MachineSize
from lattice.server.access.node_certificates import NodeIdentity
from lattice.server.agents.join import MAX_COMMIT_ATTEMPTS, node_key, verify_joined_key
from lattice.server.agents.leader_context import LeaderContext, NodeQuarantined, SessionRejected
from lattice.store.protocol import Entry, Put
from lattice.wire import agent_pb2 as pb
from lattice.wire.agent_pb2 import Hello, Registration
from lattice.wire.connection import MAY_NOT_LEAVE

# Cores in thousandths (10,000 cores) and GPUs in thousandths (1,000 GPUs).
MAX_AMOUNT_BY_RESOURCE = {"cpu": 10_000_000, "gpu": 1_000_000}
DEFAULT_MAX_AMOUNT = 1 << 60
# Limit per list of a registration: resources, labels, addresses, GPUs, runtimes.
MAX_LIST_ENTRIES = 64
# Limit of a licence or of a machine image.
MAX_FACT_CHARS = 253
RUNTIMES = frozenset({"process", "container", "fake"})
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
# The leader quarantines a node whose registration changes more often than this.
MAX_CHANGES_PER_WINDOW = 10
CHANGE_WINDOW_S = 60.0
log = structlog.get_logger()


def registration_problem(registration: Registration) -> str:
    """The first problem of a registration in one sentence, or an empty string."""
    if problem := capacity_problem(registration):
        return problem
    for key, value in registration.labels.items():
        if not key.startswith(AGENT_LABEL_PREFIX):
            return (
                f'an agent may only set labels {AGENT_LABEL_PREFIX}*, not "{key[:80]}";'
                " the join token or an administrator sets other labels"
            )
        if problem := label_key_problem(key) or label_value_problem(value):
            return f'label "{key[:80]}": {problem}'
    if unknown := sorted(set(registration.runtimes) - RUNTIMES):
        return f'unknown runtime "{unknown[0][:80]}"'
    first_port, last_port = registration.first_port, registration.last_port
    if (first_port or last_port) and not 1 <= first_port <= last_port <= 65535:
        return f"{first_port} to {last_port} is not a valid port range"
    for gpu in registration.gpus:
        if not gpu.model or len(gpu.model) > 63 or gpu.milli_free > 1000:
            return f'"{gpu.model[:80]}" with {gpu.milli_free} thousandths free is not a valid GPU'
    for text in (*registration.licences, registration.machine_image):
        if len(text) > MAX_FACT_CHARS or not text.isprintable():
            return (
                f'"{text[:80]}" is not a valid licence or machine image: at most {MAX_FACT_CHARS} characters'
            )
    for address in registration.addresses:
        if not _is_address(address.type, address.address):
            return f'"{address.address[:80]}" is not a valid {address.type[:20] or "address"}'
    return ""


def capacity_problem(registration: Registration) -> str:
    """The first problem of the capacity that an agent reports, or an empty string."""
    if (
        max(
            len(registration.capacity),
            len(registration.labels),
            len(registration.addresses),
            len(registration.gpus),
            len(registration.runtimes),
            len(registration.licences),
        )
        > MAX_LIST_ENTRIES
    ):
        return f"the registration has a list with more than {MAX_LIST_ENTRIES} entries"
    for name, amount in (*registration.capacity.items(), *registration.reserved.items()):
        if problem := label_key_problem(name):
            return f'resource "{name[:80]}": {problem}'
        limit = MAX_AMOUNT_BY_RESOURCE.get(name, DEFAULT_MAX_AMOUNT)
        if not 0 <= amount <= limit:
            return f"{name} is {amount}, which is implausible: it must be 0 to {limit}"
    for name, amount in registration.reserved.items():
        if amount > registration.capacity.get(name, 0):
            return (
                f"{amount} of {name} are reserved, but the capacity is {registration.capacity.get(name, 0)}"
            )
    return ""


def _is_address(address_type: str, text: str) -> bool:
    if address_type == "Hostname":
        return _HOST_NAME.fullmatch(text) is not None
    if address_type not in ("InternalIP", "ExternalIP"):
        return False
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def apply_registration(node: Object, hello: Hello, size: MachineSize | None = None) -> Object:
    """The node object with the agent's registration applied; fields outside of the registration stay
    unchanged.

    A node made from a node class gets at most the class's size as allocatable. Resources that the join token
    granted replace what the agent reports of them. A quarantine condition is removed.
    """
    registration, metadata = hello.registration, node["metadata"]
    # Labels from users and from the join token stay: an agent replaces only labels with its own prefix.
    labels = {
        key: value
        for key, value in metadata.get("labels", {}).items()
        if not key.startswith(AGENT_LABEL_PREFIX)
    }
    labels |= {key: registration.labels[key] for key in sorted(registration.labels)}
    metadata = {name: value for name, value in metadata.items() if name != "labels"}
    if labels:
        metadata["labels"] = labels
    previous = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    status = msgspec.structs.replace(
        previous,
        conditions=without_condition(previous.conditions, QUARANTINED),
        workloads=previous.workloads or 0,
        **_status(hello, size, parse_amounts(node.get("spec", {}).get("extended", {}))),
    )
    return {**node, "metadata": metadata, "status": msgspec.to_builtins(status)}


def with_quarantine_condition(node: Object, problem: str, now: str) -> Object | None:
    """The node with the condition that excludes the node from scheduling, or None if the node has the
    condition already."""
    previous = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    if find_condition(previous.conditions, QUARANTINED):
        return None
    quarantine = Condition(
        type=QUARANTINED, status="True", reason="ImpossibleRoom", message=problem, last_transition_time=now
    )
    status = msgspec.structs.replace(previous, conditions=(*previous.conditions, quarantine))
    return {**node, "status": msgspec.to_builtins(status)}


def _status(hello: Hello, size: MachineSize | None, granted: Mapping[str, int]) -> dict[str, object]:
    """The status fields that a registration determines; `granted` holds the amounts of the join token."""
    registration = hello.registration
    amounts_by_name = {**registration.capacity, **granted}
    capacity = {name: amounts_by_name[name] for name in sorted(amounts_by_name)}
    reserved = {name: registration.reserved[name] for name in sorted(registration.reserved)}
    gpus = tuple(NodeGpu(model=gpu.model, milli_free=gpu.milli_free) for gpu in registration.gpus)
    limits: dict[str, int] = {}
    if size is not None:
        # A zero amount of a node class sets no limit, except for GPUs.
        amounts = (
            ("cpu", size.millicores),
            ("memory", size.memory),
            ("storage", size.storage),
            ("ephemeral-storage", size.storage),
        )
        stated = {name: amount for name, amount in amounts if amount} | {"gpu": size.gpu}
        # Several machines of a class may share one host: what the class does not promise, none of them has.
        unpromised = dict.fromkeys(capacity.keys() - {name for name, _ in amounts} - {"gpu"}, 0)
        limits = unpromised | stated | size.extended
    return {
        "capacity": capacity,
        "reserved": reserved,
        "allocatable": {
            name: min(amount - reserved.get(name, 0), limits.get(name, amount))
            for name, amount in capacity.items()
        },
        # GPU amounts are thousandths. A node made from a node class offers at most the GPUs of its class.
        "gpus": gpus if size is None else gpus[: size.gpu // 1000],
        "addresses": tuple(
            NodeAddress(type=address.type, address=address.address)  # type: ignore[arg-type]
            for address in registration.addresses
        ),
        "runtimes": tuple(sorted(registration.runtimes)),
        "licences": tuple(sorted(set(registration.licences))),
        "machine_image": registration.machine_image,
        "port_range": PortRange(first=registration.first_port, last=registration.last_port)
        if registration.first_port
        else None,
        "agent_version": hello.version[:64],
    }


def has_registration_changes(stored: Object, updated: Object) -> bool:
    """Whether the labels or the status differ. An omitted field equals a field with its default."""
    return _labels_and_status(stored) != _labels_and_status(updated)


def _labels_and_status(node: Object) -> tuple[object, object]:
    status = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    return node["metadata"].get("labels", {}), status


@dataclass
class Registrar:
    """Writes registrations of agents to node objects, with a limit on changes per node."""

    clock: Clock
    # Monotonic times of recent writes, by node.
    _write_times: dict[str, list[float]] = field(default_factory=dict)

    async def register(self, leader: LeaderContext, peer: NodeIdentity, hello: pb.Hello) -> int:
        """Write the registration to the node object if the node differs; return the revision with the
        registration applied.

        If the registration states an impossible capacity or changes too often, quarantine the node and raise
        `NodeQuarantined`. Raise `SessionRejected` for every other problem. Commits are fenced by the leader's
        term.
        """
        if problem := capacity_problem(hello.registration):
            await self._quarantine(leader, peer, problem)
        if problem := registration_problem(hello.registration):
            raise SessionRejected("REGISTRATION", problem)
        # The size of the node class limits the node's allocatable, so the cache must be complete.
        await leader.cache(LatticeNodeClass).wait_for()
        for attempt in range(1, MAX_COMMIT_ATTEMPTS + 1):
            entry, node = await self._verified_node(leader, peer)
            spec, size = node.get("spec", {}), None
            node_class: LatticeNodeClass | None = leader.cache(LatticeNodeClass).get(
                f"/{spec.get('nodeClass', '')}"
            )
            # A joined machine counts at its own size, whatever class its costs are reported by.
            is_joined = NODE_FINALIZER in node["metadata"].get("finalizers", ())
            if node_class is not None and not is_joined:
                size = node_class.spec.size_on(spec.get("provider", "")) or node_class.spec.default_size
            updated = apply_registration(node, hello, size)
            if not has_registration_changes(node, updated):
                return entry.revision
            # A fickle agent must not keep the store busy: changes per window are limited.
            now = self.clock.monotonic()
            recent = [time for time in self._write_times.get(peer.node, ()) if now - time < CHANGE_WINDOW_S]
            if len(recent) >= MAX_CHANGES_PER_WINDOW:
                problem = f"the agent changed its registration {MAX_CHANGES_PER_WINDOW} times within {CHANGE_WINDOW_S:g} s"
                await self._quarantine(leader, peer, problem)
            try:
                revision = await leader.commit(
                    [Put(entry.key, pack(LatticeNode.resource, updated), entry.revision)]
                )
            except Conflict:
                # The node controller writes the same object: read again and retry.
                if attempt == MAX_COMMIT_ATTEMPTS:
                    raise
                continue
            self._write_times[peer.node] = [*recent, self.clock.monotonic()]
            return revision
        raise AssertionError("unreachable")

    async def leave(self, leader: LeaderContext, peer: NodeIdentity) -> None:
        """Mark the node of a joined machine for deletion, as its owner requests: its workloads are evicted,
        then the node is deleted. Raise SessionRejected for a machine that a provider made: its provider removes it.

        The agent repeats the request, so a lost race is no error.
        """
        entry, node = await self._verified_node(leader, peer)
        metadata = node["metadata"]
        if metadata.get("deletionTimestamp"):
            return
        if NODE_FINALIZER not in metadata.get("finalizers", ()):
            raise SessionRejected(
                MAY_NOT_LEAVE,
                f"the provider of pool {node.get('spec', {}).get('pool', '')} made this machine:"
                f" `lattice delete node {peer.node}` drains and removes it",
            )
        marked = mark_for_deletion(node, now=format_timestamp(self.clock.now()))
        with suppress(Conflict):
            await leader.commit([Put(entry.key, pack(LatticeNode.resource, marked), entry.revision)])
            log.info("the owner takes the machine back", node=peer.node)

    async def _verified_node(self, leader: LeaderContext, peer: NodeIdentity) -> tuple[Entry, Object]:
        entry = await leader.store.get(node_key(peer.node))
        node = unpack(entry.value, entry.revision) if entry else None
        try:
            verify_joined_key(peer, node)
        except (NotFound, Denied) as error:
            raise SessionRejected("UNKNOWN_NODE", str(error)) from error
        # `verify_joined_key` raises NotFound without a node.
        assert entry is not None  # noqa: S101
        assert node is not None  # noqa: S101
        return entry, node

    async def _quarantine(self, leader: LeaderContext, peer: NodeIdentity, problem: str) -> NoReturn:
        """Quarantine the node until its agent sends a valid registration, then reject the session.

        The condition is written once, regardless of how often the agent tries.
        """
        entry, node = await self._verified_node(leader, peer)
        if (
            quarantined := with_quarantine_condition(node, problem, format_timestamp(self.clock.now()))
        ) is not None:
            # After a lost race the agent connects again, and the next attempt writes the condition.
            with suppress(Conflict):
                await leader.commit([Put(entry.key, pack(LatticeNode.resource, quarantined), entry.revision)])
        raise NodeQuarantined("REGISTRATION", problem)
