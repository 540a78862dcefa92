"""Checks of node and workload manifests: problems that prevent a decision, and warnings about likely
mistakes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, Literal

import numpy as np

from lattice.errors import Cause, Invalid
from lattice.kinds.container import BYTE_RESOURCES, format_amount, resource_parser
from lattice.kinds.meta.quantity import parse_bytes
from lattice.kinds.meta.validator import join_path
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.qos import Qos, eviction_order, is_compressible
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.plugins.filters.taints import taint_evictions
from lattice.scheduling.table.node_info import PRICE_LABEL, allocatable
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.resource_fit import MAX_AMOUNT
from lattice.scheduling.table.workload_ask import (
    GPU,
    MILLI_PER_GPU,
    PORTS,
    WORKLOAD_SLOTS,
    GpuNeed,
    WorkloadAsk,
)

MAX_NAMED_EVICTIONS = 3
MAX_WAITING_KINDS = 200  # limit of distinct workloads checked for cyclic affinity


@dataclass(frozen=True, slots=True)
class InputWarning:
    """A likely mistake in a node or workload manifest."""

    kind: Literal["node", "workload"]
    name: str
    message: str


def node_problems(node: LatticeNode) -> Iterator[Cause]:
    """Problems that prevent decisions on the node: amounts below 0 or above the maximum, a price that is not
    a number."""
    for part in ("capacity", "reserved", "allocatable"):
        for name, amount in getattr(node.status, part).items():
            if not 0 <= amount <= MAX_AMOUNT:
                yield Cause(f"status.{part}.{name}", f"must be from 0 to 2^53, got {amount}")
    price = node.metadata.labels.get(PRICE_LABEL)
    if price is not None and not _is_price(price):
        yield Cause(
            f"metadata.labels.{PRICE_LABEL}", f'must be dollars per hour, such as 0.192, got "{price}"'
        )


def _is_price(text: str) -> bool:
    try:
        price = Decimal(text)
    except InvalidOperation:
        return False
    return price.is_finite() and 0 <= price <= 10**9


def workload_problems(workload: LatticeWorkload) -> Iterator[Cause]:
    """Total requests of a workload above the maximum, even if every container alone is valid."""
    for name, amount in workload.spec.request_amounts.items():
        if amount > MAX_AMOUNT:
            yield Cause(
                "spec", f"requests {amount} of {name} in total, more than any node has; the maximum is 2^53"
            )


def node_warnings(node: LatticeNode) -> Iterator[InputWarning]:
    """Conflicting or unlikely amounts in the status of a node."""
    messages: list[str] = []
    listed, capacity = len(node.status.gpus), node.status.capacity.get(GPU)
    # The scheduler counts the GPUs in status.gpus, so a capacity of GPUs that are not listed offers workloads
    # no GPU.
    if not listed and (stated := allocatable(node).get(GPU) or capacity):
        messages.append(
            f"states {format_amount(GPU, stated)} gpu, but lists no GPU, so workloads get none: "
            "list every GPU with its model under status.gpus"
        )
    if listed and capacity is not None and capacity != listed * MILLI_PER_GPU:
        messages.append(
            f"states {format_amount(GPU, capacity)} gpu, but lists {listed}, and only listed GPUs are used: "
            f"set capacity.gpu to {listed * MILLI_PER_GPU} for {listed} listed gpu"
        )
    messages += capacity_conflicts(node.status)
    # A node amount below the least plausible amount was probably written in a different unit.
    for name, amount in (node.status.capacity or node.status.allocatable).items():
        unit, least, example = _unit_of(name)
        if 0 < amount < least:
            messages.append(f"has {amount} {unit} of {name}: node amounts are in {unit}{example}")
    for message in messages:
        yield InputWarning("node", node.metadata.name, message)


def capacity_conflicts(status: NodeStatus) -> Iterator[str]:
    """Resources of which a node reserves more than its capacity, or offers more than capacity minus reserved."""
    for name, capacity in status.capacity.items():
        reserved, offered = status.reserved.get(name, 0), status.allocatable.get(name, 0)
        unreserved = max(0, capacity - reserved)
        if reserved > capacity:
            yield (
                f"reserves {format_amount(name, reserved)} {name}, "
                f"more than its capacity of {format_amount(name, capacity)}: "
                "status.reserved must be at most status.capacity"
            )
        if offered > unreserved:
            yield (
                f"offers workloads {format_amount(name, offered)} {name}, "
                f"but only {format_amount(name, unreserved)} is unreserved, and Lattice uses that amount: "
                "status.allocatable must be at most status.capacity minus status.reserved"
            )


def _unit_of(resource: str) -> tuple[str, int, str]:
    """The unit in which a node states the resource, the least plausible amount, and an example for the
    message."""
    if resource == "cpu":
        return "milli-cores", 100, ", so 4 cores are 4000"
    if resource == GPU:
        return "thousandths of a GPU", 0, ""
    if resource.startswith("hugepages-"):
        try:
            page_bytes = parse_bytes(resource.removeprefix("hugepages-"))
        except Invalid:
            page_bytes = 0
        return "bytes", page_bytes, ", not pages"
    return ("bytes", 1 << 20, f", so 16Gi is {16 << 30}") if resource in BYTE_RESOURCES else ("", 0, "")


def unit_problems(status: Any) -> Iterator[Cause]:
    """Amounts of a node that are not whole numbers, such as "16Gi" instead of a number of bytes. Only amounts
    of workloads may have a unit."""
    parts = status if isinstance(status, dict) else {}
    for part in ("capacity", "reserved", "allocatable"):
        amounts = parts.get(part)
        for name, amount in amounts.items() if isinstance(amounts, dict) else ():
            if not isinstance(amount, str | Decimal):
                continue
            unit = _unit_of(name)[0]
            shown = f'"{amount}"' if isinstance(amount, str) else str(amount)
            message = f"must be a whole number{f' of {unit}' if unit else ''}"
            try:
                message += f": {resource_parser(name)(str(amount))} for {shown}"
            except Invalid:
                message += f", got {shown}"
            yield Cause(join_path(f"status.{part}", name), message)


def unfit_gpus_message(gpu: GpuNeed, table: NodeTable, row: int) -> str:
    """Describe the requested GPUs that do not fit on the node, as the object of "cannot hold"."""
    free = ", ".join(format_amount("gpu", int(milli)) for milli in table.gpus.free(row))
    models = f" of model {' or '.join(gpu.models)}" if gpu.models else ""
    needed = format_amount("gpu", gpu.total_milli)
    return f"the requested {needed} gpu{models} beside its bound workloads (free per GPU: {free or 'none'})"


def overcommit_warnings(table: NodeTable, qos: Mapping[str, Qos]) -> Iterator[InputWarning]:
    """Nodes whose bound workloads request more than the capacity, with the consequences."""
    overcommitted = {
        resource: np.flatnonzero(table.free(number) < 0).tolist()
        for resource, number in table.resource_index.items()
    }
    rows = set(chain.from_iterable(overcommitted.values()))
    for row in sorted(rows, key=table.names.__getitem__):
        resources = [resource for resource, short_rows in overcommitted.items() if row in short_rows]
        amounts = []
        for resource in resources:
            number = table.resource_index[resource]
            allocated = format_amount(resource, int(table.allocated(number)[row]))
            total = format_amount(resource, int(table.total(number)[row]))
            amounts.append(f"{allocated} of {total} {resource}")
        message = f"is overcommitted: its bound workloads request {', '.join(amounts)}"
        # An excess of workload slots or ports has no consequence for running workloads.
        physical = [resource for resource in resources if resource not in (PORTS, WORKLOAD_SLOTS)]
        if slowing := [resource for resource in physical if is_compressible(resource)]:
            message += f"; too little {' and '.join(slowing)} slows the workloads down"
        if killing := [resource for resource in physical if not is_compressible(resource)]:
            # The node would end only workloads that request the missing resource.
            affected = []
            for name, placement in table.placements_by_row[row].items():
                if any(resource in killing for resource, _ in placement.ask.demands.requests):
                    affected.append((name, qos[name], placement.ask.priority))
            order = eviction_order(affected)
            first = ", ".join(order[:MAX_NAMED_EVICTIONS])
            if len(order) > MAX_NAMED_EVICTIONS:
                first += ", …"
            message += f"; too little {' and '.join(killing)} ends workloads in this order: {first}"
        yield InputWarning("node", table.names[row], message)


def taint_eviction_warnings(table: NodeTable) -> Iterator[InputWarning]:
    """Bound workloads that a NoExecute taint of their node evicts."""
    for node, row in table.row_of.items():
        node_info = table.node_infos[row]
        if node_info is not None and node_info.taints:
            for name, eviction in taint_evictions(node_info, table.placements_by_row[row].values()).items():
                yield InputWarning("workload", name, f"is evicted from node {node} {eviction}")


def cyclic_affinity_warnings(asks: Iterable[WorkloadAsk], table: NodeTable) -> Iterator[InputWarning]:
    """Waiting workloads that require affinity to each other in a cycle, so none of them can be scheduled
    first."""
    kinds = {
        (ask.demands.namespace, ask.demands.labels, ask.demands.affinity_terms): ask
        for ask in asks
        if ask.demands.affinity_terms and not ask.group
    }
    waiting = list(kinds.values())[:MAX_WAITING_KINDS]
    awaited: dict[str, list[str]] = {}
    for ask in waiting:
        namespace = ask.demands.namespace
        # A term that a placed workload matches is met and makes no workload wait.
        unmet = [
            term
            for term in ask.demands.affinity_terms
            if not table.topology_counts(term.namespace or namespace, term.selector).per_node(table).any()
        ]
        awaited[ask.name] = [
            peer.name
            for peer in waiting
            if peer.name != ask.name and any(peer.matches_term(term, namespace) for term in unmet)
        ]
    reported: set[str] = set()
    for ask in waiting:
        cycle = _affinity_cycle(ask.name, awaited)
        if cycle and reported.isdisjoint(cycle):
            reported.update(cycle)
            links = ", which waits for ".join((*cycle[1:], ask.name))
            yield InputWarning(
                "workload",
                ask.name,
                f"waits for {links}: none can be scheduled first; "
                "give the workloads the same spec.group to schedule them together",
            )


def _affinity_cycle(start: str, awaited: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest chain of waiting workloads from `start` to a workload that waits for `start`; () without a
    cycle."""
    chains: list[tuple[str, ...]] = [(start,)]
    visited = {start}
    # Breadth-first: the list grows during the loop, and shorter chains come first.
    for path in chains:
        for name in awaited[path[-1]]:
            if name == start:
                return path
            if name not in visited:
                visited.add(name)
                chains.append((*path, name))
    return ()
