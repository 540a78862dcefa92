"""An affinity or anti-affinity term of a service, as placement decides by it."""

from dataclasses import dataclass

# Topology keys that divide one offer.
LOCAL_TOPOLOGY_KEYS = ("cluster", "node")


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """One affinity or anti-affinity term, resolved to the names under which the trial fleet lists its
    targets: services, and workloads without a service."""

    # For example: service db.
    text: str
    key: str
    targets: tuple[str, ...]
    is_anti: bool = False
    # 0: the term is required.
    weight: int = 0
    # False: the term of a target, whose required anti-affinity keeps this service away.
    is_own: bool = True

    @property
    def is_local(self) -> bool:
        """Whether clusters or machines decide, and not the offer."""
        return self.key in LOCAL_TOPOLOGY_KEYS

    def limits_to_one_per_node(self, service: str) -> bool:
        """Whether the term only keeps the replicas of the service itself on different machines: a limit of one
        replica per machine."""
        return self.is_anti and self.key == "node" and self.targets == (service,)

    @property
    def properties(self) -> tuple[str, bool, int, bool]:
        """What the term asks, without the names of services."""
        return self.key, self.is_anti, self.weight, self.is_own

    def __str__(self) -> str:
        return f"{'no ' if self.is_anti else ''}{self.text} in the same {self.key}"
