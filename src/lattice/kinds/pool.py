"""LatticePool: how much may be used, and spent, in one region of one provider?"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.infrastructure import secret_name_problems
from lattice.kinds.meta.base import LIST_MAP_BY_NAME, LIST_SET, Column, Kind, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    dollars_to_micros,
    gib_to_bytes,
    number_problems,
    parse_cores,
    share_as_fraction,
    threshold_problems,
)
from lattice.kinds.meta.selector import label_key_problem, label_value_problem
from lattice.kinds.meta.validator import join_path

DEFAULT_ALERT_MILLIONTHS = 800_000  # millionths of the budget: seed value 0.8


class PoolCredentials(Part):
    """Where the login for the provider is kept."""

    secret_ref: Annotated[
        str, Meta(description="Name of a Secret in namespace lattice-system with the provider's keys.")
    ]


class PoolProvider(Part):
    """Who supplies the machines, and where."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            description="Provider, such as local or aws: a name of the server's --providers, or the pool is closed.",
        ),
    ]
    region: Annotated[str, Meta(description="The provider's own name of the region, such as us-east-1.")] = ""
    zone: Annotated[str, Meta(description="Zone inside the region, if the pool is confined to one.")] = ""
    credentials: (
        Annotated[
            PoolCredentials, Meta(description="Login for the provider; absent means that none is needed.")
        ]
        | None
    ) = None


class PoolCapacity(Part):
    """Ceilings; one that is absent does not limit."""

    max_nodes: (
        Annotated[int, Meta(ge=0, description="Most machines at a time; 0 closes the pool.")] | None
    ) = None
    max_cores: Annotated[Amount, Meta(description="Most cores over all machines.")] | None = None
    max_memory_gi: Annotated[Amount, Meta(description="Most memory over all machines, in GiB.")] | None = None

    @property
    def max_millicores(self) -> int | None:
        return None if self.max_cores is None else parse_cores(self.max_cores)

    @property
    def max_memory_bytes(self) -> int | None:
        return None if self.max_memory_gi is None else gib_to_bytes(self.max_memory_gi)


class PoolBudget(Part):
    """Money per month. A pool's budget is hard: nothing is provisioned beyond it."""

    max_monthly_cost: (
        Annotated[Amount, Meta(description="Most that may be spent in a month of 30 days.")] | None
    ) = None
    currency: Annotated[
        str,
        Meta(
            pattern="^[A-Z]{3}$",
            description="USD, as all prices are; a pool that counts in another currency is not used.",
        ),
    ] = "USD"
    alert_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share of the budget that raises an alert, as 0.8 or as 80 percent; 0.8 by default."
            ),
        ]
        | None
    ) = None

    @property
    def limit_micros(self) -> int | None:
        return None if self.max_monthly_cost is None else dollars_to_micros(self.max_monthly_cost)

    @property
    def alert_millionths(self) -> int:
        return (
            DEFAULT_ALERT_MILLIONTHS
            if self.alert_threshold is None
            else dollars_to_micros(share_as_fraction(self.alert_threshold))
        )


class PoolSpec(Part):
    """What the pool offers and what bounds it."""

    provider: Annotated[PoolProvider, Meta(description="Who supplies the machines, and where.")]
    capacity: Annotated[PoolCapacity, Meta(description="Ceilings on machines, cores and memory.")] = (
        PoolCapacity()
    )
    budget: (
        Annotated[
            PoolBudget, Meta(description="Ceiling on money; absent means that capacity is the only limit.")
        ]
        | None
    ) = None
    node_classes: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Names of the LatticeNodeClasses that the pool may use.")
    ] = ()
    labels: Annotated[
        dict[str, Any],
        Meta(
            description="What services select by. A value is a string or a list of strings; `compliance` lists the pool's certificates."
        ),
    ] = {}

    def label_values(self, key: str) -> tuple[str, ...]:
        found = self.labels.get(key, ())
        return (found,) if isinstance(found, str) else tuple(found)

    @property
    def compliance(self) -> tuple[str, ...]:
        return self.label_values("compliance")

    @property
    def capabilities(self) -> tuple[str, ...]:
        return self.label_values("capabilities")

    @property
    def data_residency(self) -> tuple[str, ...]:
        return self.label_values("dataResidency")


class PoolUsage(Part):
    """What is in use."""

    allocated_nodes: Annotated[int, Meta(description="Machines that exist or are being made.")] | None = None
    allocated_cores: Annotated[Amount, Meta(description="Cores of these machines.")] | None = None
    allocated_memory_gi: Annotated[Amount, Meta(description="Memory of these machines, in GiB.")] | None = (
        None
    )


class PoolUtilization(Part):
    """Shares in use, 0 to 1, of the capacities that are limited."""

    nodes: Annotated[Amount, Meta(description="Share of maxNodes.")] | None = None
    cores: Annotated[Amount, Meta(description="Share of maxCores.")] | None = None
    memory: Annotated[Amount, Meta(description="Share of maxMemoryGi.")] | None = None


class PoolSpending(Part):
    """Where the budget stands."""

    current_month_cost: Annotated[Amount, Meta(description="Spent in this calendar month so far.")] | None = (
        None
    )
    projected_month_cost: (
        Annotated[Amount, Meta(description="Spent plus the present rate until the month ends.")] | None
    ) = None
    utilization_percent: (
        Annotated[Amount, Meta(description="Projected cost as a share of the budget, 0.82 for 82 percent.")]
        | None
    ) = None


class PoolCluster(Part):
    """One cluster of the pool."""

    name: Annotated[str, Meta(description="Name of the LatticeCluster.")]
    nodes: Annotated[int, Meta(description="Its machines.")] | None = None
    services: Annotated[int, Meta(description="Services that run in it.")] | None = None


class PoolStatus(Status):
    """What is in use, what it costs, and which clusters use it."""

    capacity: Annotated[PoolUsage, Meta(description="What is in use.")] | None = None
    utilization: Annotated[PoolUtilization, Meta(description="Shares in use.")] | None = None
    budget: Annotated[PoolSpending, Meta(description="Where the budget stands.")] | None = None
    clusters: Annotated[
        tuple[PoolCluster, ...], LIST_MAP_BY_NAME, Meta(description="Clusters made in this pool.")
    ] = ()
    next_cluster_sequence: (
        Annotated[int, Meta(description="Number of the next cluster; never given twice.")] | None
    ) = None


class LatticePool(Kind):
    """Capacity and budget in one region of one provider. Services are placed in pools; clusters and machines follow by themselves."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticePool",
        plural="latticepools",
        short_names=("lp",),
        columns=(
            Column("Provider", ".spec.provider.type"),
            Column("Region", ".spec.provider.region"),
            Column("Nodes", ".status.capacity.allocatedNodes", "integer"),
            Column("Max", ".spec.capacity.maxNodes", "integer"),
            Column("Budget", ".spec.budget.maxMonthlyCost", "number", description="Dollars per month."),
            Column(
                "Projected",
                ".status.budget.projectedMonthCost",
                "number",
                description="Dollars until the end of this month.",
            ),
            Column("Phase", ".status.phase"),
            Column("Classes", ".spec.nodeClasses[*]", priority=1),
            Column("Clusters", ".status.clusters[*].name", priority=1),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status', priority=1),
        ),
    )

    spec: PoolSpec
    status: PoolStatus = PoolStatus()

    def problems(self) -> Iterator[Cause]:
        yield from number_problems(self.spec.capacity, "spec.capacity")
        if login := self.spec.provider.credentials:
            yield from secret_name_problems("spec.provider.credentials.secretRef", login.secret_ref)
        if self.spec.budget:
            yield from number_problems(self.spec.budget, "spec.budget")
            yield from threshold_problems("spec.budget.alertThreshold", self.spec.budget.alert_threshold)
        for key, value in self.spec.labels.items():
            yield from _label_problems(key, value)


def _label_problems(key: str, value: object) -> Iterator[Cause]:
    path = join_path("spec.labels", key)
    if wrong := label_key_problem(key):
        yield Cause(path, wrong)
    values = value if isinstance(value, list | tuple) else (value,)
    for each in values:
        if not isinstance(each, str):
            yield Cause(path, f"must be a string or a list of strings, got {each!r}", "FieldValueTypeInvalid")
        elif wrong := label_value_problem(each):
            yield Cause(path, wrong)
