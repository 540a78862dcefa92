"""Invariant of placement: services run only in allowed pools and on allowed classes. The check is an oracle
that shares no code with placement."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.node import NODE_CLASS_LABEL
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload, service_path
from lattice.sim.invariants.context import CONTROLLERS, CheckerContext, Findings
from lattice.sim.invariants.history import ObjectChange
from lattice.sim.world.store import CommitRecord

# Labels of a pool that a service requires in separate fields.
DEMANDED_LABELS = ("compliance", "capabilities", "dataResidency")


def check_placement(context: CheckerContext, record: CommitRecord, changes: list[ObjectChange]) -> Findings:
    """I-14: replicas are added only in pools and on classes that the service allows, and created only where
    the service was placed."""
    if record.origin != CONTROLLERS:
        return
    for change in changes:
        if isinstance(change.new, LatticeService):
            old_counts = _node_group_counts(change.old)
            for (pool, cluster, kind), count in _node_group_counts(change.new).items():
                # Only added replicas: placed replicas stay when their pool changes later.
                if count <= old_counts[pool, cluster, kind]:
                    continue
                since = context.unseen_since(record)
                pools = context.snapshot.versions(LatticePool, f"/{pool}", since)
                classes = context.snapshot.versions(LatticeNodeClass, f"/{kind}", since)
                # The writer may have known any of these versions. One pair that allows the placement is
                # enough.
                reasons = [
                    forbidden_reason(change.new, *versions) for versions in product(pools, classes)
                ] or [f"pool {pool} or class {kind} does not exist"]
                if all(reasons):
                    yield "I-14", f"{change.key.path} was placed in {pool} on {kind}: {reasons[0]}"
        workload = change.new
        if not isinstance(workload, LatticeWorkload) or change.old is not None or not workload.spec.service:
            continue
        path = service_path(workload)
        node_class = workload.spec.constraints.node_selector.get(NODE_CLASS_LABEL, "")
        placed: set[tuple[str, str]] = set()
        for version in context.snapshot.versions(LatticeService, path, context.unseen_since(record)):
            placed |= {(cluster, kind) for _, cluster, kind in _node_group_counts(version)}
        if (workload.spec.cluster, node_class) not in placed:
            node_group = f"{workload.spec.cluster} on {node_class}"
            yield (
                "I-14",
                f"{workload.metadata.name} was created for {node_group}, where {path} was not placed",
            )


def _node_group_counts(service: LatticeService | None) -> Counter[tuple[str, str, str]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for placement in service.status.placements if service else ():
        counts[placement.pool, placement.cluster, placement.node] += placement.replicas or 0
    return +counts


def forbidden_reason(service: LatticeService, pool: LatticePool, kind: LatticeNodeClass) -> str:
    """The reasons that forbid a service to run on machines of the class in the pool; empty if allowed."""
    placement, pool_labels = service.spec.placement, pool.spec.labels or pool.metadata.labels
    provider = pool.spec.provider
    labels = {
        **pool_labels,
        **{
            key: [value]
            for key, value in (
                ("region", provider.region),
                ("zone", provider.zone),
                ("provider", provider.type),
            )
            if value
        },
    }
    # Pools and services may spell demanded values in different case.
    provided = {
        key: {value.lower() for value in _label_values(pool.spec.labels, key)} for key in DEMANDED_LABELS
    }
    demanded = dict(
        zip(
            DEMANDED_LABELS,
            (
                placement.compliance,
                placement.capabilities,
                (placement.data_residency,) if placement.data_residency else (),
            ),
            strict=True,
        )
    )
    taints = [taint for taint in kind.spec.taints if taint.effect != "PreferNoSchedule"]
    reasons = {
        "the pool does not match the selected labels": placement.pools is None
        or selector_matches(placement.pools, labels),
        **{
            f"the pool lacks {key}": {value.lower() for value in values} <= provided[key]
            for key, values in demanded.items()
        },
        "the pool does not offer the class": kind.metadata.name in pool.spec.node_classes,
        "the machines lack selected labels": all(
            kind.spec.labels.get(key) == value for key, value in placement.node_selector.items()
        ),
        "the machines have an untolerated taint": all(
            any(toleration.tolerates(taint) for toleration in placement.tolerations) for taint in taints
        ),
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def selector_matches(selector: LabelSelector, labels: Mapping[str, Any]) -> bool:
    """Report whether the selector matches; a label with a list matches by any value of the list."""
    if any(value not in _label_values(labels, key) for key, value in selector.match_labels.items()):
        return False
    for expression in selector.match_expressions:
        is_among = bool(set(_label_values(labels, expression.key)) & set(expression.values))
        holds = {
            "In": is_among,
            "NotIn": not is_among,
            "Exists": expression.key in labels,
            "DoesNotExist": expression.key not in labels,
        }
        if not holds.get(expression.operator, True):
            return False
    return True


def _label_values(labels: Mapping[str, Any], key: str) -> list[str]:
    values = labels.get(key, [])
    return [values] if isinstance(values, str) else list(values)
