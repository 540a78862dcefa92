"""A blocker: what keeps a replica or a service from running, and the objects that a diagnosis reads."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol, get_args

from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import DEFAULT_NAMESPACE
from lattice.kinds.node import LatticeNode
from lattice.kinds.pool import LatticePool

# The stages on the road of a replica, in order: the first stage that blocks is the answer.
Stage = Literal[
    "Deleting",
    "Stopped",
    "Placement",
    "Budget",
    "Provider",
    "Machine",
    "Node",
    "Eviction",
    "Image",
    "Start",
    "Crash",
    "Probe",
    "Rollout",
    "Succeeded",
]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True, slots=True)
class Blocker:
    """What blocks at one stage, since when, what Lattice does next, and what would help."""

    stage: Stage
    # The object that blocks, as kind/namespace/name or kind/name.
    object: str
    # One sentence without a final period.
    cause: str
    need: str = ""
    have: str = ""
    # Timestamp; empty if it is unknown.
    since: str = ""
    # What Lattice does next, in one sentence; `next_at` is the time of it, if there is one.
    next: str = ""
    next_at: str = ""
    # What a user can do.
    fix: str = ""
    # A command that shows more, or does what `fix` says.
    command: str = ""
    exit_code: int | None = None
    log: str = ""

    @property
    def rank(self) -> int:
        return STAGES.index(self.stage)


def command_in(namespace: str | None, words: str) -> str:
    """The command as a user types it for an object of the namespace."""
    flag = "" if namespace in (None, "", DEFAULT_NAMESPACE) else f" -n {namespace}"
    return f"lattice {words}{flag}"


@dataclass(frozen=True, slots=True)
class Facts:
    """Access to the stored objects around a replica. Every function returns None, or an empty sequence, for an
    object that does not exist."""

    now: datetime
    node: Callable[[str], LatticeNode | None]
    nodes_of_cluster: Callable[[str], Sequence[LatticeNode]]
    cluster: Callable[[str], LatticeCluster | None]
    pool: Callable[[str], LatticePool | None]
    ledgers: Callable[[], Sequence[LatticeLedger]] = field(default=lambda: ())
    # Blockers of machines that were computed already, by cluster and node class.
    machine_blockers: dict[tuple[str, str], Blocker | None] = field(default_factory=dict)


class ObjectCache(Protocol):
    """What a diagnosis reads of the local copy of one kind."""

    def get(self, path: str) -> Any: ...
    def by_index(self, name: str, value: str) -> Sequence[Any]: ...
    def objects(self) -> Sequence[Any]: ...


def facts_from(cache: Callable[[type[Any]], ObjectCache], now: datetime) -> Facts:
    """Return access to the objects of the caches, which `cache` returns by kind."""
    nodes, clusters, pools, ledgers = map(cache, (LatticeNode, LatticeCluster, LatticePool, LatticeLedger))
    return Facts(
        now,
        lambda name: nodes.get(f"/{name}"),
        lambda cluster: nodes.by_index("cluster", cluster),
        lambda name: clusters.get(f"/{name}"),
        lambda name: pools.get(f"/{name}"),
        ledgers.objects,
    )


def facts_of(
    now: datetime,
    nodes: Iterable[LatticeNode] = (),
    clusters: Iterable[LatticeCluster] = (),
    pools: Iterable[LatticePool] = (),
    ledgers: Sequence[LatticeLedger] = (),
) -> Facts:
    """Return access to the given objects."""
    nodes_by_name = {node.metadata.name: node for node in nodes}
    nodes_by_cluster: dict[str, list[LatticeNode]] = {}
    for node in nodes_by_name.values():
        nodes_by_cluster.setdefault(node.spec.cluster, []).append(node)
    clusters_by_name = {cluster.metadata.name: cluster for cluster in clusters}
    pools_by_name = {pool.metadata.name: pool for pool in pools}
    return Facts(
        now,
        nodes_by_name.get,
        lambda cluster: nodes_by_cluster.get(cluster, ()),
        clusters_by_name.get,
        pools_by_name.get,
        lambda: ledgers,
    )
