"""Nodes and workloads as given: what nobody can decide with, and what can be decided with but is hardly meant."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

import numpy as np

from lattice.errors import Cause, Invalid
from lattice.kinds.container import BYTE_RESOURCES, format_amount, resource_parser
from lattice.kinds.meta.quantity import parse_bytes
from lattice.kinds.meta.validator import join_path
from lattice.kinds.node import LatticeNode, NodeStatus
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.plugins.filters.taints import taint_evictions
from lattice.scheduling.table.ask import GPU, MILLI_PER_GPU, PORTS, WORKLOAD_SLOTS, GpuNeed, WorkloadAsk
from lattice.scheduling.table.node_info import PRICE_LABEL, allocatable
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.table.qos import Qos, eviction_order, is_compressible
from lattice.scheduling.table.resource_fit import MAX_AMOUNT

MAX_NAMED_EVICTIONS = 3  # of those who go, named
MAX_WAITING_KINDS = 200  # of workloads that wait for others, looked at to see who waits for whom


@dataclass(frozen=True, slots=True)
class InputWarning:
    """Something about what was given that the user should know."""

    kind: Literal["node", "workload"]
    name: str
    message: str


def node_problems(node: LatticeNode) -> Iterator[Cause]:
    """What nobody can decide with: room below nothing or beyond all measure, a price that is no number."""
    for part in ("capacity", "reserved", "allocatable"):
        for name, amount in getattr(node.status, part).items():
            if not 0 <= amount <= MAX_AMOUNT:
                yield Cause(f"status.{part}.{name}", f"must be from 0 to 2^53, got {amount}")
    price = node.metadata.labels.get(PRICE_LABEL)
    if price is not None and not _is_price(price):
        yield Cause(f"metadata.labels.{PRICE_LABEL}", f'must be dollars an hour such as 0.192, got "{price}"')


def _is_price(text: str) -> bool:
    try:
        price = Decimal(text)
    except InvalidOperation:
        return False
    return price.is_finite() and 0 <= price <= 10**9


def workload_problems(workload: LatticeWorkload) -> Iterator[Cause]:
    """Its containers may each ask for something sane and all together not."""
    for name, amount in workload.spec.request_amounts.items():
        if amount > MAX_AMOUNT:
            yield Cause(
                "spec", f"asks for {amount} of {name} all together, more than any node has; at most 2^53"
            )


def node_warnings(node: LatticeNode) -> Iterator[InputWarning]:
    """What it says of itself that does not go together, or is hardly meant."""
    for what in (*_gpu_warnings(node), *capacity_conflicts(node.status), *_unit_mistakes(node.status)):
        yield InputWarning("node", node.metadata.name, what)


def _gpu_warnings(node: LatticeNode) -> Iterator[str]:
    """GPUs are counted one by one: a number of them alone gives workloads none."""
    listed, said = len(node.status.gpus), node.status.capacity.get(GPU)
    if not listed and (told := allocatable(node).get(GPU) or said):
        yield f"says {format_amount(GPU, told)} gpu, yet none counts: list each one under status.gpus, with its model"
    if listed and said is not None and said != listed * MILLI_PER_GPU:
        yield f"says {format_amount(GPU, said)} gpu, but lists {listed}: the list counts; of {listed}, capacity.gpu is {listed * MILLI_PER_GPU}"


def capacity_conflicts(status: NodeStatus) -> Iterator[str]:
    """Where it keeps, or gives, more than it has."""
    for name, has in status.capacity.items():
        kept = status.reserved.get(name, 0)
        left, given = max(0, has - kept), status.allocatable.get(name, 0)
        if kept > has:
            more, all_of_it = format_amount(name, kept), format_amount(name, has)
            yield f"keeps {more} {name}, more than the {all_of_it} it has: status.reserved must be at most status.capacity"
        if given > left:
            words = f"gives workloads {format_amount(name, given)} {name}, more than the {format_amount(name, left)} it has for them"
            yield f"{words}: only these count; status.allocatable must be at most status.capacity less status.reserved"


def _unit_mistakes(status: NodeStatus) -> Iterator[str]:
    """So little that another unit was meant."""
    for name, amount in (status.capacity or status.allocatable).items():
        unit, least, example = _unit_of(name)
        if 0 < amount < least:
            yield f"has {amount} {unit} of {name}: amounts of nodes are {unit}{example}"


def _unit_of(resource: str) -> tuple[str, int, str]:
    """What amounts of nodes are counted in, the least that anybody would have of it, and an example."""
    if resource == "cpu":
        return "milli-cores", 100, ", so 4 cores are 4000"
    if resource == GPU:
        return "thousandths of a GPU", 0, ""
    if resource.startswith("hugepages-"):
        return "bytes", _hugepage_bytes(resource), ", not pages"
    return ("bytes", 1 << 20, f", so 16Gi is {16 << 30}") if resource in BYTE_RESOURCES else ("", 0, "")


def _hugepage_bytes(resource: str) -> int:
    try:
        return parse_bytes(resource.removeprefix("hugepages-"))
    except Invalid:
        return 0


def unit_problems(status: Any) -> Iterator[Cause]:
    """Amounts of a node as people write those of workloads: "16Gi" for a number of bytes."""
    parts = status if isinstance(status, dict) else {}
    for part in ("capacity", "reserved", "allocatable"):
        amounts = parts.get(part)
        for name, given in amounts.items() if isinstance(amounts, dict) else ():
            if isinstance(given, str | Decimal):
                yield Cause(join_path(f"status.{part}", name), _whole_number_message(name, given))


def _whole_number_message(resource: str, given: str | Decimal) -> str:
    unit = _unit_of(resource)[0]
    shown = f'"{given}"' if isinstance(given, str) else str(given)
    what = f"must be a whole number{f' of {unit}' if unit else ''}"
    try:
        return f"{what}: {resource_parser(resource)(str(given))} for {shown}"
    except Invalid:
        return f"{what}, got {shown}"


def unfit_gpus_message(gpu: GpuNeed, table: NodeTable, row: int) -> str:
    """GPUs of a workload that a node has no place for, in words."""
    free = ", ".join(format_amount("gpu", int(milli)) for milli in table.gpus.free(row))
    models = f" of model {' or '.join(gpu.models)}" if gpu.models else ""
    return f"its {format_amount('gpu', gpu.total_milli)} gpu{models} beside the others that are bound there (free of each: {free or 'none'})"


def overcommit_warnings(table: NodeTable, qos: Mapping[str, Qos]) -> Iterator[InputWarning]:
    """Nodes whose bound workloads ask for more than there is, and what comes of it."""
    short = {
        resource: np.flatnonzero(table.free(number) < 0) for resource, number in table.resource_index.items()
    }
    rows = {int(row) for found in short.values() for row in found}
    for row in sorted(rows, key=table.names.__getitem__):
        lacking = [resource for resource, found in short.items() if row in found]
        over = ", ".join(_used_of_total(table, resource, row) for resource in lacking)
        told = "".join(f"; {each}" for each in _overcommit_consequences(table, row, lacking, qos))
        yield InputWarning(
            "node", table.names[row], f"workloads bound to it take more than it has: {over}{told}"
        )


def _overcommit_consequences(
    table: NodeTable, row: int, lacking: Iterable[str], qos: Mapping[str, Qos]
) -> Iterator[str]:
    """Slots and ports are only counted: nobody suffers from a lack of them."""
    real = [resource for resource in lacking if resource not in (PORTS, WORKLOAD_SLOTS)]
    if slow := [resource for resource in real if is_compressible(resource)]:
        yield f"too little {' and '.join(slow)} slows them down"
    if deadly := [resource for resource in real if not is_compressible(resource)]:
        concerned = [
            (name, qos[name], each.ask.priority)
            for name, each in table.placements_by_row[row].items()
            if any(resource in deadly for resource, _ in each.ask.demands.requests)
        ]
        order = eviction_order(concerned)
        first = ", ".join(order[:MAX_NAMED_EVICTIONS]) + (", …" if len(order) > MAX_NAMED_EVICTIONS else "")
        yield f"too little {' and '.join(deadly)} ends some, in this order: {first}"


def _used_of_total(table: NodeTable, resource: str, row: int) -> str:
    number = table.resource_index[resource]
    taken, total = (
        format_amount(resource, int(amounts[row]))
        for amounts in (table.allocated(number), table.total(number))
    )
    return f"{taken} of {total} {resource}"


def taint_eviction_warnings(table: NodeTable) -> Iterator[InputWarning]:
    """Bound workloads that a NoExecute taint sends away."""
    for node, row in table.row_of.items():
        facts = table.node_infos[row]
        if facts is not None and facts.taints:
            for name, eviction in taint_evictions(facts, table.placements_by_row[row].values()).items():
                yield InputWarning("workload", name, f"must leave node {node} {eviction}")


def cyclic_affinity_warnings(asks: Iterable[WorkloadAsk], table: NodeTable) -> Iterator[InputWarning]:
    """Workloads that must each be near another that waits in turn, so that none can be the first."""
    kinds = {
        (ask.demands.namespace, ask.demands.labels, ask.demands.near): ask
        for ask in asks
        if ask.demands.near and not ask.group
    }
    waiting = list(kinds.values())[:MAX_WAITING_KINDS]
    awaited = {ask.name: _awaited_peers(ask, waiting, table) for ask in waiting}
    told: set[str] = set()
    for ask in waiting:
        circle = _affinity_cycle(ask.name, awaited)
        if circle and told.isdisjoint(circle):
            told.update(circle)
            chain = ", which waits for ".join((*circle[1:], "it"))
            yield InputWarning(
                "workload",
                ask.name,
                f"waits for {chain}: none can be the first; with the same spec.group they are placed together",
            )


def _awaited_peers(ask: WorkloadAsk, waiting: Iterable[WorkloadAsk], table: NodeTable) -> list[str]:
    """Those among the waiting that it must be near to, for terms that nobody who is placed meets."""
    namespace = ask.demands.namespace
    unmet = [
        term.selector
        for term in ask.demands.near
        if not table.topology_counts(namespace, term.selector).per_node(table).any()
    ]
    others = [each for each in waiting if each.name != ask.name and each.demands.namespace == namespace]
    return [each.name for each in others if any(selector.matches(each.labels) for selector in unmet)]


def _affinity_cycle(start: str, awaited: Mapping[str, list[str]]) -> tuple[str, ...]:
    """The shortest way from somebody to one who waits for them; () if there is none."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen = {start}
    for way in ways:
        for name in awaited[way[-1]]:
            if name == start:
                return way
            if name not in seen:
                seen.add(name)
                ways.append((*way, name))
    return ()
