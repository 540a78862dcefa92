"""Placing: a service goes only where it says it may; said by somebody who knows the kinds and the rules, and not the code that places."""

from collections import Counter
from collections.abc import Mapping
from itertools import product
from typing import Any

from lattice.kinds.meta.selector import LabelSelector
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.sim.invariants.context import CONTROLLERS, CheckerContext, Findings
from lattice.sim.invariants.history import ObjectChange
from lattice.sim.world.store import CommitRecord

NODE_CLASS_LABEL = "lattice.dev/node-class"  # what a replica's machine must be, by the label of its node
DEMANDED_LABELS = (
    "compliance",
    "capabilities",
    "dataResidency",
)  # labels of a pool that a service demands by fields of their own


def check_placement(seen: CheckerContext, record: CommitRecord, moves: list[ObjectChange]) -> Findings:
    """I-14: more replicas only in pools and on classes that the service allows, and replicas only where it was placed."""
    if record.origin != CONTROLLERS:
        return
    for move in moves:
        if isinstance(move.new, LatticeService):
            yield from _check_placements(seen, record, move)
        elif isinstance(move.new, LatticeWorkload) and move.old is None and move.new.spec.service:
            yield from _check_new_replica(seen, record, move.new)


def _check_placements(seen: CheckerContext, record: CommitRecord, move: ObjectChange) -> Findings:
    before = _node_group_counts(move.old)
    for cell, count in _node_group_counts(move.new).items():
        if count <= before[cell]:
            continue
        pool, _, kind = cell
        since = seen.unseen_since(record)
        pools, classes = (
            seen.snapshot.versions(LatticePool, f"/{pool}", since),
            seen.snapshot.versions(LatticeNodeClass, f"/{kind}", since),
        )
        reasons = [forbidden_reason(move.new, *each) for each in product(pools, classes)] or [
            f"there is no pool {pool}, or no class {kind}"
        ]
        if all(reasons):
            yield "I-14", f"{move.key.path} was placed in {pool} on {kind}: {reasons[0]}"


def _check_new_replica(seen: CheckerContext, record: CommitRecord, workload: LatticeWorkload) -> Findings:
    path = f"{workload.metadata.namespace}/{workload.spec.service}"
    cell = (workload.spec.cluster, workload.spec.constraints.node_selector.get(NODE_CLASS_LABEL, ""))
    known = seen.snapshot.versions(LatticeService, path, seen.unseen_since(record))
    if not any(cell == (cluster, kind) for each in known for _, cluster, kind in _node_group_counts(each)):
        yield (
            "I-14",
            f"{workload.metadata.name} was made for {' on '.join(cell)}, where {path} was not placed",
        )


def _node_group_counts(service: LatticeService | None) -> Counter[tuple[str, str, str]]:
    found: Counter[tuple[str, str, str]] = Counter()
    for each in service.status.placements if service else ():
        found[each.pool, each.cluster, each.node] += each.replicas or 0
    return +found


def forbidden_reason(service: LatticeService, pool: LatticePool, kind: LatticeNodeClass) -> str:
    """Why that service may not be on machines of that class in that pool; empty if it may."""
    asked, stated = service.spec.placement, pool.spec.labels or pool.metadata.labels
    where = pool.spec.provider
    labels = {
        **stated,
        **{
            key: [value]
            for key, value in (("region", where.region), ("zone", where.zone), ("provider", where.type))
            if value
        },
    }
    has = {key: {each.lower() for each in _label_values(pool.spec.labels, key)} for key in DEMANDED_LABELS}
    demanded = dict(
        zip(
            DEMANDED_LABELS,
            (asked.compliance, asked.capabilities, (asked.data_residency,) if asked.data_residency else ()),
            strict=True,
        )
    )
    barring = [each for each in kind.spec.taints if each.effect != "PreferNoSchedule"]
    reasons = {
        "it has other labels": asked.pools is None or selector_matches(asked.pools, labels),
        **{
            f"it lacks {key}": {each.lower() for each in wanted} <= has[key]
            for key, wanted in demanded.items()
        },
        "it does not offer that class": kind.metadata.name in pool.spec.node_classes,
        "its machines have other labels": all(
            kind.spec.labels.get(key) == value for key, value in asked.node_selector.items()
        ),
        "its machines have a taint": all(
            any(each.tolerates(taint) for each in asked.tolerations) for taint in barring
        ),
    }
    return "; ".join(words for words, holds in reasons.items() if not holds)


def selector_matches(selector: LabelSelector, labels: Mapping[str, Any]) -> bool:
    """Every value of a label that is a list counts."""
    if any(value not in _label_values(labels, key) for key, value in selector.match_labels.items()):
        return False
    for each in selector.match_expressions:
        is_among = bool(set(_label_values(labels, each.key)) & set(each.values))
        holds = {
            "In": is_among,
            "NotIn": not is_among,
            "Exists": each.key in labels,
            "DoesNotExist": each.key not in labels,
        }
        if not holds.get(each.operator, True):
            return False
    return True


def _label_values(labels: Mapping[str, Any], key: str) -> list[str]:
    found = labels.get(key, [])
    return [found] if isinstance(found, str) else list(found)
