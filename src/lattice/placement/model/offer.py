"""An offer: the machine types, prices and limits of one pool, cloud region or data center."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from lattice.kinds.constraint import Taint
from lattice.kinds.infrastructure import DEFAULT_ALERT_MILLIONTHS, Reservation
from lattice.kinds.ledger import Account
from lattice.kinds.overflow import Overflow
from lattice.placement.inputs.latency import Place
from lattice.placement.inputs.price_book import Price

# An absent limit; the sum of two absent limits still fits in 64 bits.
NO_LIMIT = 1 << 61
# The single machine type that fixed capacity divides into.
STATIC_MACHINE_TYPE = "static"


@dataclass(frozen=True, slots=True)
class MachineType:
    """A LatticeNodeClass with the size and price that one offer has for the class."""

    name: str
    # Milli-cores, bytes, milli-GPUs and counts, by resource.
    size: Mapping[str, int]
    # Micro-dollars per hour that decisions and budgets count with; 0 for owned machines.
    rate: int
    # None: unknown.
    price: Price | None = None
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    @property
    def is_priced(self) -> bool:
        return self.price is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper limits on the nodes, milli-cores, bytes of memory and clusters of one offer."""

    nodes: int = NO_LIMIT
    milli: int = NO_LIMIT
    memory: int = NO_LIMIT
    clusters: int = NO_LIMIT
    nodes_per_cluster: int = NO_LIMIT
    # Milli-GPUs by model, where the offer counts GPUs in total.
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Budget:
    """The budget of one account that pays for machines of one or more offers."""

    account: Account
    limit: int | None  # micro-dollars per month
    is_hard: bool = True
    alert_millionths: int = DEFAULT_ALERT_MILLIONTHS
    # Micro-dollars per hour that may be committed in total; NO_LIMIT: the budget rejects no commitment.
    commit_cap: int = NO_LIMIT
    spent_this_month: int = 0  # micro-dollars this calendar month
    # The part of the month after the counted spending; None: from now on.
    month_remaining: timedelta | None = None

    @property
    def name(self) -> str:
        return self.account.ledger_name


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A LatticePool, one region of a CloudInfrastructure, or a StaticInfrastructure, as a candidate for
    replicas.

    Compliance, capabilities and residency are in lower case, as demands are.
    """

    name: str
    kind: Literal["pool", "cloud", "static"]
    owner: str  # name of the object behind the offer
    place: Place
    labels: Mapping[str, tuple[str, ...]]
    compliance: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    residency: frozenset[str] = frozenset()
    types: tuple[MachineType, ...] = ()
    limits: Limits = Limits()
    # Names of the ledgers that pay for every machine of the offer.
    budgets: tuple[str, ...] = ()
    reservation: Reservation | None = None
    reserved_nodes: int = 0
    overflow: Overflow | None = None
    closed_reason: str = ""  # why no new replica is placed
    reopen_hint: str = ""  # the change that opens the offer again

    @property
    def region(self) -> str:
        """The region for spreading; an offer without a region is a region by name."""
        return self.place.region or self.name

    @property
    def is_static(self) -> bool:
        return self.kind == "static"

    def initial_nodes(self, min_nodes: int) -> int:
        """Machines that a new cluster starts with: the minimum of the policy, within the limit per cluster of
        the offer."""
        return max(1, min(min_nodes, self.limits.nodes_per_cluster))

    def is_in(self, region: str) -> bool:
        """Whether a required region names the offer or the region of the offer."""
        return region in (self.name, self.place.region)
