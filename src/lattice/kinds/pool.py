"""LatticePool: capacity and budget in one region of one provider."""

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
    share_to_millionths,
    threshold_problems,
)
from lattice.kinds.meta.selector import label_key_problem, label_value_problem
from lattice.kinds.meta.validator import join_path
from lattice.kinds.webhook import Notify

# By default an alert is raised when spending reaches this part of the budget, in millionths. Do not import
# DEFAULT_ALERT_MILLIONTHS of cloud_budget.py instead. It is the default of LedgerSpec.alert_millionths, and
# msgspec omits a field whose value is the very object of its default. The ledgers of pools would then be
# stored without alertMillionths.
DEFAULT_ALERT_MILLIONTHS = 800_000
# The currency of every price: a budget in another currency cannot be compared with prices.
PRICE_CURRENCY = "USD"


class PoolCredentials(Part):
    """The Secret with the credentials for the provider."""

    secret_ref: Annotated[
        str,
        Meta(
            description="Name of a Secret in namespace lattice-system with the credentials for the provider."
        ),
    ]


class PoolProvider(Part):
    """Provider of the machines, and their region."""

    type: Annotated[
        str,
        Meta(
            min_length=1,
            description=(
                "Provider, such as local or aws. It must be one of the server's --providers; "
                "otherwise the pool is closed."
            ),
        ),
    ]
    region: Annotated[str, Meta(description="The provider's own name of the region, such as us-east-1.")] = ""
    zone: Annotated[str, Meta(description="Zone within the region, if the pool is confined to one zone.")] = (
        ""
    )
    credentials: (
        Annotated[
            PoolCredentials,
            Meta(description="Credentials for the provider; absent means that none are needed."),
        ]
        | None
    ) = None


class PoolCapacity(Part):
    """Limits of the pool; an absent field sets no limit."""

    max_nodes: (
        Annotated[
            int,
            Meta(
                ge=0,
                description=(
                    "Maximum number of machines that Lattice makes; 0: none. Joined machines do not count."
                ),
            ),
        ]
        | None
    ) = None
    max_cores: (
        Annotated[Amount, Meta(description="Maximum number of cores of all machines that Lattice makes.")]
        | None
    ) = None
    max_memory_gi: (
        Annotated[Amount, Meta(description="Maximum memory of all machines that Lattice makes, in GiB.")]
        | None
    ) = None

    @property
    def max_millicores(self) -> int | None:
        return None if self.max_cores is None else parse_cores(self.max_cores)

    @property
    def max_memory_bytes(self) -> int | None:
        return None if self.max_memory_gi is None else gib_to_bytes(self.max_memory_gi)


class PoolBudget(Part):
    """Budget per month. The budget of a pool is a hard limit: Lattice provisions nothing beyond the
    budget."""

    max_monthly_cost: (
        Annotated[Amount, Meta(description="Maximum spending in 30 days, and in a calendar month.")] | None
    ) = None
    currency: Annotated[
        str,
        Meta(
            pattern="^[A-Z]{3}$",
            description=(
                "Currency of the budget. All prices are in USD; a pool with another currency is not used."
            ),
        ),
    ] = PRICE_CURRENCY
    alert_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share of the budget that raises an alert, as 0.8 or 80 (percent); 0.8 by default."
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
            else share_to_millionths(self.alert_threshold)
        )


class PoolSpec(Part):
    """Provider, machine classes and limits of the pool."""

    provider: Annotated[PoolProvider, Meta(description="Provider of the machines, and their region.")]
    capacity: Annotated[PoolCapacity, Meta(description="Limits on machines, cores and memory.")] = (
        PoolCapacity()
    )
    budget: (
        Annotated[
            PoolBudget, Meta(description="Limit on spending; absent means that capacity is the only limit.")
        ]
        | None
    ) = None
    node_classes: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Names of the LatticeNodeClasses that the pool may use.")
    ] = ()
    labels: Annotated[
        dict[str, Any],
        Meta(
            description=(
                "Labels that services select pools by. A value is a string or a list of strings. "
                "`compliance` lists the pool's compliance standards."
            )
        ),
    ] = {}

    notify: (
        Annotated[
            Notify,
            Meta(description="Notifications about the budget and the capacity; absent means events only."),
        ]
        | None
    ) = None

    def label_values(self, key: str) -> tuple[str, ...]:
        value = self.labels.get(key, ())
        return (value,) if isinstance(value, str) else tuple(value)

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
    """Machines, cores and memory in use."""

    allocated_nodes: Annotated[int, Meta(description="Machines that exist or are being created.")] | None = (
        None
    )
    allocated_cores: Annotated[Amount, Meta(description="Cores of these machines.")] | None = None
    allocated_memory_gi: Annotated[Amount, Meta(description="Memory of these machines, in GiB.")] | None = (
        None
    )


class PoolUtilization(Part):
    """Shares in use, 0 to 1, of the capacities with a limit."""

    nodes: Annotated[Amount, Meta(description="Share of maxNodes.")] | None = None
    cores: Annotated[Amount, Meta(description="Share of maxCores.")] | None = None
    memory: Annotated[Amount, Meta(description="Share of maxMemoryGi.")] | None = None


class PoolSpending(Part):
    """Spending against the budget."""

    current_month_cost: (
        Annotated[Amount, Meta(description="Spending in this calendar month so far.")] | None
    ) = None
    projected_month_cost: (
        Annotated[
            Amount, Meta(description="Spending so far plus the current rate until the end of the month.")
        ]
        | None
    ) = None
    utilization_percent: (
        Annotated[
            Amount,
            Meta(
                description=(
                    "Use as a share of the budget under the rule that binds, 0.82 for 82 percent: 30 days at the "
                    "current rate, or the projected cost of the month, whichever is larger."
                )
            ),
        ]
        | None
    ) = None


class PoolCluster(Part):
    """One cluster of the pool."""

    name: Annotated[str, Meta(description="Name of the LatticeCluster.")]
    nodes: Annotated[int, Meta(description="Number of machines.")] | None = None
    services: Annotated[int, Meta(description="Number of services in the cluster.")] | None = None


class PoolStatus(Status):
    """Usage, spending and clusters of the pool."""

    capacity: Annotated[PoolUsage, Meta(description="Machines, cores and memory in use.")] | None = None
    utilization: Annotated[PoolUtilization, Meta(description="Shares of the limits in use.")] | None = None
    budget: Annotated[PoolSpending, Meta(description="Spending against the budget.")] | None = None
    clusters: Annotated[
        tuple[PoolCluster, ...], LIST_MAP_BY_NAME, Meta(description="Clusters in this pool.")
    ] = ()
    next_cluster_sequence: (
        Annotated[int, Meta(description="Number of the next cluster; never reused.")] | None
    ) = None


class LatticePool(Kind):
    """Capacity and budget in one region of one provider. Lattice places services in pools, and creates the
    clusters and machines for them."""

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
        if self.spec.notify:
            yield from self.spec.notify.problems("spec.notify")
        # Only the name needs a check: the credentials of all pools are in one namespace (decision 0022).
        if login := self.spec.provider.credentials:
            yield from secret_name_problems("spec.provider.credentials.secretRef", login.secret_ref)
        if self.spec.budget:
            yield from number_problems(self.spec.budget, "spec.budget")
            yield from threshold_problems("spec.budget.alertThreshold", self.spec.budget.alert_threshold)
        for key, value in self.spec.labels.items():
            path = join_path("spec.labels", key)
            if wrong := label_key_problem(key):
                yield Cause(path, wrong)
            for item in value if isinstance(value, list | tuple) else (value,):
                if not isinstance(item, str):
                    problem = f"must be a string or a list of strings, got {item!r}"
                    yield Cause(path, problem, "FieldValueTypeInvalid")
                elif wrong := label_value_problem(item):
                    yield Cause(path, wrong)
