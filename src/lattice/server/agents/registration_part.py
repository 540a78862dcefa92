"""What an agent says its machine is, held against what an agent may say, and what of it is written to the node."""

import ipaddress
import re

import msgspec

from lattice.kinds.meta.base import Condition
from lattice.kinds.node import AGENT_LABELS, QUARANTINED, NodeAddress, NodeGpu, NodeStatus, PortRange
from lattice.kinds.node_class import Size
from lattice.kinds.meta.selector import key_problem, value_problem
from lattice.kinds.meta.stored import Object
from lattice.wire.agent_pb2 import Hello, Registration

MOST = {"cpu": 10_000_000, "gpu": 1_000_000}  # 10,000 cores, 1,000 GPUs
MOST_OF_ANY = 1 << 60
MOST_NAMES = 64  # resources, labels, addresses, GPUs
RUNTIMES = frozenset({"process", "container", "fake"})
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")


def problem(said: Registration) -> str:
    """What is wrong with it, in one sentence; "" if nothing is."""
    return room_problem(said) or _labels_problem(said) or _rest_problem(said)


def room_problem(said: Registration) -> str:
    """What is wrong with the room that it claims to have."""
    if (
        max(len(said.capacity), len(said.labels), len(said.addresses), len(said.gpus), len(said.runtimes))
        > MOST_NAMES
    ):
        return f"it lists more than {MOST_NAMES} of one thing"
    for name, amount in (*said.capacity.items(), *said.reserved.items()):
        if wrong := key_problem(name):
            return f'resource "{name[:80]}": {wrong}'
        if not 0 <= amount <= MOST.get(name, MOST_OF_ANY):
            return f"{name} is {amount}, which no machine has: it must be 0 to {MOST.get(name, MOST_OF_ANY)}"
    for name, amount in said.reserved.items():
        if amount > said.capacity.get(name, 0):
            return f"{amount} of {name} are reserved, and there are {said.capacity.get(name, 0)}"
    return ""


def _labels_problem(said: Registration) -> str:
    for key, value in said.labels.items():
        if not key.startswith(AGENT_LABELS):
            return f'an agent may only set labels {AGENT_LABELS}*, not "{key[:80]}"; others come with the join token or from an administrator'
        if wrong := key_problem(key) or value_problem(value):
            return f'label "{key[:80]}": {wrong}'
    return ""


def _rest_problem(said: Registration) -> str:
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


def registered(node: Object, hello: Hello, size: Size | None = None) -> Object:
    """The node with what its agent said; everything else is as it was. A machine that was made from a class has no more room than that."""
    said, metadata = hello.registration, node["metadata"]
    kept = {
        key: value for key, value in metadata.get("labels", {}).items() if not key.startswith(AGENT_LABELS)
    }
    labels = {**kept, **{key: said.labels[key] for key in sorted(said.labels)}}
    others = {name: value for name, value in metadata.items() if name != "labels"}
    before = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    conditions = tuple(each for each in before.conditions if each.type != QUARANTINED)
    known = {"conditions": conditions, "workloads": before.workloads or 0}
    status = msgspec.to_builtins(msgspec.structs.replace(before, **known, **_status(hello, size)))
    return {**node, "metadata": {**others, **({"labels": labels} if labels else {})}, "status": status}


def quarantined(node: Object, why: str, now: str) -> Object | None:
    """The node with the mark that nothing is to be put there; None if it has that already, whatever the reason."""
    before = msgspec.convert(node.get("status", {}), NodeStatus, strict=False)
    if any(each.type == QUARANTINED for each in before.conditions):
        return None
    mark = Condition(
        type=QUARANTINED, status="True", reason="ImpossibleRoom", message=why, last_transition_time=now
    )
    status = msgspec.structs.replace(before, conditions=(*before.conditions, mark))
    return {**node, "status": msgspec.to_builtins(status)}


def _status(hello: Hello, size: Size | None) -> dict[str, object]:
    said = hello.registration
    capacity = {name: said.capacity[name] for name in sorted(said.capacity)}
    reserved = {name: said.reserved[name] for name in sorted(said.reserved)}
    gpus = tuple(NodeGpu(model=each.model, milli_free=each.milli_free) for each in said.gpus)
    most = {} if size is None else _most(size)
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


def _most(size: Size) -> dict[str, int]:
    """What a class leaves open does not limit; GPUs that it does not have are not there."""
    stated = {
        name: amount
        for name, amount in (("cpu", size.milli), ("memory", size.memory), ("storage", size.storage))
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
