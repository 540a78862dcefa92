"""Nodes and workloads as given: what nobody can decide with, and what can be decided with but is hardly meant."""

from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Literal

import numpy as np

from lattice.errors import Cause
from lattice.kinds.node import LatticeNode
from lattice.kinds.workload import LatticeWorkload
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.facts import PRICE_LABEL, allocatable
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.resources import show_amount

MOST = 1 << 60  # of any resource: an exbibyte, 10^15 cores. More is a slip of the hand, and sums of it would not fit into int64


@dataclass(frozen=True, slots=True)
class Odd:
    """Something about what was given that the user should know."""

    kind: Literal["node", "workload"]
    name: str
    what: str


def node_problems(node: LatticeNode) -> Iterator[Cause]:
    """What nobody can decide with: room below nothing or beyond all measure, a price that is no number."""
    for part in ("capacity", "reserved", "allocatable"):
        for name, amount in getattr(node.status, part).items():
            if not 0 <= amount <= MOST:
                yield Cause(f"status.{part}.{name}", f"must be from 0 to 2^60, got {amount}")
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
        if amount > MOST:
            yield Cause("spec", f"asks for {amount} of {name} all together, more than any node has; at most 2^60")


def node_oddities(node: LatticeNode) -> Iterator[Odd]:
    """GPUs are counted one by one: a number of them alone gives workloads none."""
    told = allocatable(node).get("gpu") or node.status.capacity.get("gpu")
    if told and not node.status.gpus:
        what = f"says {show_amount('gpu', told)} gpu, yet none counts: list each one under status.gpus, with its model"
        yield Odd("node", node.metadata.name, what)


def hard_to_hold(ask: WorkloadAsk, table: NodeTable, row: int) -> str:
    """What of a workload a node has no place for, in words."""
    gpu = ask.demands.gpu
    if gpu is None:
        return "it"
    free = ", ".join(show_amount("gpu", int(milli)) for milli in table.gpus.free(row))
    models = f" of model {' or '.join(gpu.models)}" if gpu.models else ""
    return f"its {show_amount('gpu', gpu.total)} gpu{models} beside the others that are bound there (free of each: {free or 'none'})"


def overfull(table: NodeTable) -> Iterator[Odd]:
    """Nodes whose bound workloads ask for more than there is."""
    short = {resource: np.flatnonzero(table.free(number) < 0) for resource, number in table.index.items()}
    rows = {int(row) for found in short.values() for row in found}
    for row in sorted(rows, key=table.names.__getitem__):
        over = ", ".join(_taken_of(table, resource, row) for resource, found in short.items() if row in found)
        yield Odd("node", table.names[row], f"workloads bound to it take more than it has: {over}")


def _taken_of(table: NodeTable, resource: str, row: int) -> str:
    number = table.index[resource]
    taken, total = (show_amount(resource, int(amounts[row])) for amounts in (table.taken(number), table.total(number)))
    return f"{taken} of {total} {resource}"
