"""What real machines offer, beside what their class states: the report of a node, and the record that keeps
purchases from counting on resources that the machines of a class do not have."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lattice.kinds.infrastructure import StaticInfrastructure
from lattice.kinds.meta.base import Condition, Kind
from lattice.kinds.meta.quantity import approximate_bytes, format_cores
from lattice.kinds.node import CLASS_GENERATION_ANNOTATION, LatticeNode
from lattice.kinds.node_class import (
    MACHINES_DIFFER_CONDITION,
    LatticeNodeClass,
    ObservedGpus,
    ObservedMachine,
)
from lattice.kinds.service import LatticeService, Remediation

# The runtimes that a machine may have of which nothing is stated.
POSSIBLE_RUNTIMES = frozenset({"container", "process"})
# Limit of differences that the message of the condition names.
MAX_NAMED_DIFFERENCES = 5
RESET_HINT = "no machine is bought for what they lack, until a newer machine reports more or the spec of the class changes"


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Resources, GPUs and runtimes of one real machine; a resource that is absent is not there."""

    size: Mapping[str, int]
    # Number of GPUs by model.
    gpus: Mapping[str, int]
    # None: the agent reports no runtimes.
    runtimes: frozenset[str] | None

    @property
    def gpu_model(self) -> str:
        """The model of the GPUs; empty without GPUs, and if the machine has several models."""
        return next(iter(self.gpus)) if len(self.gpus) == 1 else ""


@dataclass(frozen=True, slots=True)
class PromisedMachine:
    """A machine as its class states it; runtimes are None if the class does not state them."""

    size: Mapping[str, int]
    gpu_model: str = ""
    runtimes: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One resource of which the real machines have less than stated."""

    subject: str
    stated: str
    real: str

    def __str__(self) -> str:
        return f"{self.subject} {self.real} instead of {self.stated}"


def machine_report(node: LatticeNode) -> MachineReport | None:
    """The report of the agent of a node; None before the agent has reported. The scheduler counts with the
    same amounts."""
    status = node.status
    if not status.allocatable:
        return None
    gpus: dict[str, int] = {}
    for gpu in status.gpus:
        gpus[gpu.model] = gpus.get(gpu.model, 0) + 1
    size = dict(status.allocatable)
    size["gpu"] = sum(gpu.milli_free for gpu in status.gpus)
    return MachineReport(size, gpus, frozenset(status.runtimes) or None)


def counted_reports(nodes: Iterable[LatticeNode], generation: int) -> dict[str, list[LatticeNode]]:
    """Reporting nodes by offer, without the nodes that were made from an earlier generation of the class: a
    changed class may promise other machines. A joined machine has its own size and says nothing about its
    class."""
    by_offer: dict[str, list[LatticeNode]] = {}
    for node in nodes:
        made_from = node.metadata.annotations.get(CLASS_GENERATION_ANNOTATION, "")
        is_current = made_from in ("", str(generation)) and not node.is_joined_machine
        if not is_current or not node.status.allocatable:
            continue
        by_offer.setdefault(node.spec.pool, []).append(node)
    return by_offer


def update_record(
    previous: ObservedMachine | None,
    promised: PromisedMachine,
    nodes: Sequence[LatticeNode],
    generation: int,
    at: str,
) -> ObservedMachine | None:
    """The record of one offer after the reports of its nodes; None if no machine has had less than is stated.

    Of several machines and of the earlier record of the same generation the largest amounts count, so that a
    better machine lifts the record and the record never swings between two machines.
    """
    if previous is not None and previous.generation != generation:
        previous = None
    size: dict[str, int] = dict(previous.allocatable) if previous else {}
    gpus = {entry.model: entry.count for entry in previous.gpus} if previous else {}
    runtimes = set(previous.runtimes) if previous else set()
    for node in nodes:
        report = machine_report(node)
        if report is None:
            continue
        for name, amount in report.size.items():
            size[name] = max(size.get(name, 0), amount)
        for model, count in report.gpus.items():
            gpus[model] = max(gpus.get(model, 0), count)
        runtimes |= report.runtimes or set()
    if not nodes and previous is None:
        return None
    newest = max(
        nodes, key=lambda node: (node.metadata.creation_timestamp or "", node.metadata.name), default=None
    )
    record = ObservedMachine(
        offer=newest.spec.pool if newest else previous.offer if previous else "",
        allocatable=dict(sorted(size.items())),
        gpus=tuple(ObservedGpus(model=model, count=count) for model, count in sorted(gpus.items())),
        runtimes=tuple(sorted(runtimes)),
        provider=newest.spec.provider if newest else previous.provider if previous else "",
        node=newest.metadata.name if newest else previous.node if previous else "",
        generation=generation,
        at=at,
    )
    if previous is not None and (previous.allocatable, previous.gpus, previous.runtimes) == (
        record.allocatable,
        record.gpus,
        record.runtimes,
    ):
        record = previous
    # A record of machines that are as stated by now stays: one of the lesser machines may be the last.
    return record if previous is not None or lacks_anything(promised, record) else None


def lacks_anything(promised: PromisedMachine, record: ObservedMachine) -> bool:
    """Whether the real machines have less than stated, or lack a runtime that is possible as stated."""
    is_short_of_runtimes = (
        bool(record.runtimes)
        and promised.runtimes is None
        and not POSSIBLE_RUNTIMES.issubset(record.runtimes)
    )
    return is_short_of_runtimes or bool(differences(promised, record))


def differences(promised: PromisedMachine, record: ObservedMachine) -> list[Difference]:
    """Every resource, GPU model and stated runtime that the real machines lack."""
    differing = []
    for name, amount in sorted(promised.size.items()):
        has = record.allocatable.get(name, 0)
        if has < amount:
            differing.append(Difference(name, _format(name, amount), _format(name, has)))
    models = [entry.model for entry in record.gpus]
    if promised.gpu_model and models and promised.gpu_model not in models:
        differing.append(Difference("gpu model", promised.gpu_model, ", ".join(models)))
    if promised.runtimes is not None and record.runtimes:
        real = ", ".join(record.runtimes)
        differing += [
            Difference("runtime", runtime, real)
            for runtime in sorted(promised.runtimes - set(record.runtimes))
        ]
    return differing


def _format(resource: str, amount: int) -> str:
    if resource in ("cpu", "gpu"):
        return format_cores(amount)
    return approximate_bytes(amount) if resource in ("memory", "storage") else f"{amount:,}"


def machines_differ_condition(differences_by_offer: Mapping[str, Sequence[Difference]]) -> Condition:
    """The condition MachinesDiffer of a class or data center, from the differences by offer."""
    named = [
        f"{difference} in {offer}"
        for offer, differing in sorted(differences_by_offer.items())
        for difference in differing
    ]
    if not named:
        return Condition(type=MACHINES_DIFFER_CONDITION, status="False", reason="AsStated")
    omitted = len(named) - MAX_NAMED_DIFFERENCES
    text = "; ".join(named[:MAX_NAMED_DIFFERENCES]) + (f"; and {omitted} more" if omitted > 0 else "")
    return Condition(
        type=MACHINES_DIFFER_CONDITION,
        status="True",
        reason="LessThanStated",
        message=f"the machines have {text}: {RESET_HINT}",
    )


def placement_records(obj: Kind) -> tuple[ObservedMachine | Remediation, ...]:
    """The part of a status that placement reads like a spec: what real machines offer, and the machines that
    refused a replica."""
    if isinstance(obj, LatticeNodeClass | StaticInfrastructure):
        return obj.status.observed
    if isinstance(obj, LatticeService):
        return tuple(record for record in obj.status.remediation if record.refused)
    return ()
