"""What does one place offer: machines of which classes, at what price, within which limits?"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from lattice.kinds.constraint import Taint
from lattice.kinds.infrastructure import DEFAULT_ALERT_MILLIONTHS, Overflow, Reservation
from lattice.kinds.ledger import Account
from lattice.placement.inputs.latency import Place
from lattice.placement.inputs.price_book import Price

NO_LIMIT = 1 << 61  # an absent limit; two of them still add up in 64 bits
STATIC_MACHINE_TYPE = "static"  # the one class of machines that fixed capacity divides into


@dataclass(frozen=True, slots=True)
class MachineType:
    """A LatticeNodeClass as one offer has it."""

    name: str
    size: Mapping[str, int]  # milli-cores, bytes, milli-GPUs and counts by resource
    rate: int  # micro-dollars per hour that decisions and budgets count with; 0 for what is owned
    price: Price | None = None  # None: unknown
    gpu_model: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()

    @property
    def is_priced(self) -> bool:
        return self.price is not None


@dataclass(frozen=True, slots=True)
class Limits:
    """Ceilings of one offer."""

    nodes: int = NO_LIMIT
    milli: int = NO_LIMIT
    memory: int = NO_LIMIT
    clusters: int = NO_LIMIT
    nodes_per_cluster: int = NO_LIMIT
    gpus: Mapping[str, int] = field(
        default_factory=dict
    )  # milli-GPUs by model, of a place that says how many it has


@dataclass(frozen=True, slots=True)
class Budget:
    """Money that machines of some offers are paid from."""

    account: Account
    limit: int | None  # micro-dollars per month
    is_hard: bool = True
    alert_millionths: int = DEFAULT_ALERT_MILLIONTHS  # millionths
    commit_cap: int = (
        NO_LIMIT  # micro-dollars per hour that may be committed in all; NO_LIMIT where nothing is refused
    )
    spent_this_month: int = 0  # micro-dollars this calendar month
    month_remaining: timedelta | None = (
        None  # of that month, after what is counted as spent; None: from now on
    )

    @property
    def name(self) -> str:
        return self.account.ledger_name


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """A LatticePool, one region of a CloudInfrastructure, or a StaticInfrastructure. Words that are compared are in lower case."""

    name: str
    kind: Literal["pool", "cloud", "static"]
    owner: str  # name of the object it comes from
    place: Place
    labels: Mapping[str, tuple[str, ...]]
    compliance: frozenset[str] = frozenset()
    capabilities: frozenset[str] = frozenset()
    residency: frozenset[str] = frozenset()
    types: tuple[MachineType, ...] = ()
    limits: Limits = Limits()
    budgets: tuple[str, ...] = ()  # names of the ledgers that each machine here is paid from
    reservation: Reservation | None = None
    reserved_nodes: int = 0
    overflow: Overflow | None = None
    closed_reason: str = ""  # why nothing new goes here
    reopen_hint: str = ""  # what would open it again

    @property
    def region(self) -> str:
        """What counts as a region of its own for spreading."""
        return self.place.region or self.name

    @property
    def is_static(self) -> bool:
        return self.kind == "static"

    def initial_nodes(self, least: int) -> int:
        """Machines that a new cluster begins with: what a policy wants, within what a cluster may have here."""
        return max(1, min(least, self.limits.nodes_per_cluster))

    def is_in(self, region: str) -> bool:
        """Does a required region, given by name, mean this offer?"""
        return region in (self.name, self.place.region)
