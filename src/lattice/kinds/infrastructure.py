"""CloudInfrastructure (rented capacity) and StaticInfrastructure (owned capacity)."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.cloud_budget import CloudBudget, RegionBudget
from lattice.kinds.meta.base import (
    LIST_SET,
    SYSTEM_NAMESPACE,
    Column,
    Kind,
    OpaqueJson,
    Part,
    Resource,
    Status,
)
from lattice.kinds.meta.quantity import (
    Amount,
    Quantity,
    number_problems,
    parse_bits,
    parse_bytes,
    parse_cores,
    parse_millis,
    quantity_problems,
    threshold_problems,
)
from lattice.kinds.meta.selector import label_problems, label_value_problem, subdomain_problem
from lattice.kinds.meta.validator import join_path
from lattice.kinds.node_class import OBSERVED_BY_OFFER, ObservedMachine
from lattice.kinds.overflow import Overflow
from lattice.kinds.webhook import Notify

# Conditions of clouds, data centers and pools.
BUDGET_CONDITION = "BudgetExceeded"
ALERT_CONDITION = "BudgetAlert"
PRESSURE_CONDITION = "CapacityPressure"
CREDENTIALS_CONDITION = "CredentialsValid"
DEGRADED_CONDITION = "Degraded"
OVERLAPS_CONDITION = "Overlaps"


class CredentialsRef(Part):
    """The Secret with the credentials for the provider."""

    name: Annotated[str, Meta(min_length=1, description="Name of the Secret.")]
    namespace: Annotated[
        str,
        Meta(
            description=(
                "Namespace of the Secret. It must be lattice-system, the namespace of credentials, "
                "which is also the default."
            )
        ),
    ] = SYSTEM_NAMESPACE

    def problems(self, path: str) -> Iterator[Cause]:
        yield from secret_name_problems(f"{path}.name", self.name)
        # Another namespace would let the server use a Secret that the writer cannot read (decision 0022).
        if self.namespace != SYSTEM_NAMESPACE:
            yield Cause(
                f"{path}.namespace",
                f'must be {SYSTEM_NAMESPACE}, the namespace of credentials, got "{self.namespace[:80]}"',
            )


def secret_name_problems(path: str, name: str) -> Iterator[Cause]:
    if wrong := subdomain_problem(name):
        yield Cause(path, wrong)


class CloudDefaults(Part):
    """Values for all regions that do not set their own."""

    compliance: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Compliance standards of every region, such as gdpr.")
    ] = ()
    capabilities: Annotated[tuple[str, ...], LIST_SET, Meta(description="Capabilities of every region.")] = ()
    max_clusters_per_region: (
        Annotated[int, Meta(ge=0, description="Maximum number of clusters in one region.")] | None
    ) = None
    max_nodes_per_cluster: (
        Annotated[int, Meta(ge=1, description="Maximum number of machines in one cluster.")] | None
    ) = None


class RegionQuotas(Part):
    """Limits of one region; a stated limit replaces the default."""

    max_clusters: (
        Annotated[int, Meta(ge=0, description="Maximum number of clusters in this region.")] | None
    ) = None
    max_nodes_per_cluster: (
        Annotated[int, Meta(ge=1, description="Maximum number of machines in one cluster of this region.")]
        | None
    ) = None


class CloudRegion(Part):
    """One region that services may use."""

    budget: (
        Annotated[
            CloudBudget,
            Meta(
                description="Budget of this region, within the budget of the whole cloud; both limits apply."
            ),
        ]
        | None
    ) = None
    compliance: (
        Annotated[
            tuple[str, ...],
            LIST_SET,
            Meta(description="Compliance standards of this region, in place of the default ones."),
        ]
        | None
    ) = None
    capabilities: (
        Annotated[
            tuple[str, ...],
            LIST_SET,
            Meta(description="Capabilities of this region, in place of the default ones."),
        ]
        | None
    ) = None
    quotas: Annotated[RegionQuotas, Meta(description="Limits of this region.")] = RegionQuotas()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction in which stored data stays, such as eu.")
    ] = ""


class CloudSpec(Part):
    """A cloud account: provider, budget and regions."""

    provider: Annotated[
        str,
        Meta(
            min_length=1,
            description="Cloud provider: aws, gcp, azure or another provider that bills by usage.",
        ),
    ]
    credentials_ref: Annotated[CredentialsRef, Meta(description="Credentials for provisioning.")] | None = (
        None
    )
    budget: (
        Annotated[CloudBudget, Meta(description="Budget over all regions; absent means no limit.")] | None
    ) = None
    defaults: Annotated[
        CloudDefaults, Meta(description="Values for all regions that do not set their own.")
    ] = CloudDefaults()
    regions: Annotated[
        dict[str, CloudRegion],
        Meta(description="Regions that services may use, by the provider's name of the region."),
    ] = {}
    notify: (
        Annotated[
            Notify,
            Meta(description="Notifications about the budget and the capacity; absent means events only."),
        ]
        | None
    ) = None

    def compliance_of(self, region: str) -> tuple[str, ...]:
        own = self.regions[region].compliance
        # A region may state an empty list on purpose, so only an absent list means the defaults.
        return self.defaults.compliance if own is None else own

    def capabilities_of(self, region: str) -> tuple[str, ...]:
        own = self.regions[region].capabilities
        return self.defaults.capabilities if own is None else own

    def max_clusters_of(self, region: str) -> int | None:
        own = self.regions[region].quotas.max_clusters
        return self.defaults.max_clusters_per_region if own is None else own

    def max_nodes_per_cluster_of(self, region: str) -> int | None:
        own = self.regions[region].quotas.max_nodes_per_cluster
        return self.defaults.max_nodes_per_cluster if own is None else own


class CloudSpend(Part):
    """Spending in this calendar month, in US dollars."""

    monthly: Annotated[Amount, Meta(description="Total of all regions.")] | None = None
    by_region: Annotated[
        dict[str, Amount], Meta(description="Spending by region; the values add up to the total.")
    ] = {}
    projected: (
        Annotated[
            Amount, Meta(description="Spending so far plus the current rate until the end of the month.")
        ]
        | None
    ) = None


class CloudClusters(Part):
    """Number of clusters."""

    total: Annotated[int, Meta(description="Total of all regions.")] | None = None
    by_region: Annotated[dict[str, int], Meta(description="Number by region.")] = {}


class CloudStatus(Status):
    """Current spending and clusters."""

    current_spend: Annotated[CloudSpend, Meta(description="Spending in this calendar month.")] | None = None
    clusters: Annotated[CloudClusters, Meta(description="Number of clusters.")] | None = None
    region_budgets: Annotated[
        dict[str, RegionBudget], Meta(description="Use of the budgets of regions that have a limit.")
    ] = {}
    next_cluster_sequence: Annotated[
        dict[str, int], Meta(description="Number of the next cluster, by region; never reused.")
    ] = {}


class CloudInfrastructure(Kind):
    """Rented capacity: a cloud account that grows on demand within its budget."""

    resource: ClassVar[Resource] = Resource(
        kind="CloudInfrastructure",
        plural="cloudinfrastructures",
        short_names=("ci",),
        columns=(
            Column("Provider", ".spec.provider"),
            Column("Budget", ".spec.budget.monthly", "number", description="Dollars per month."),
            Column(
                "Spent",
                ".status.currentSpend.monthly",
                "number",
                description="Dollars in this calendar month.",
            ),
            Column("Hard", ".spec.budget.hardLimit", "boolean"),
            Column("Clusters", ".status.clusters.total", "integer"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Exceeded", '.status.conditions[?(@.type=="BudgetExceeded")].status', priority=1),
            Column("Credentials", '.status.conditions[?(@.type=="CredentialsValid")].status', priority=1),
        ),
    )

    spec: CloudSpec
    status: CloudStatus = CloudStatus()

    def problems(self) -> Iterator[Cause]:
        yield from number_problems(self.spec, "spec")
        if self.spec.notify:
            yield from self.spec.notify.problems("spec.notify")
        if self.spec.credentials_ref:
            yield from self.spec.credentials_ref.problems("spec.credentialsRef")
        if self.spec.budget:
            yield from threshold_problems("spec.budget.alertThreshold", self.spec.budget.alert_threshold)
        for name, region in self.spec.regions.items():
            if not name or label_value_problem(name):
                yield Cause(
                    join_path("spec.regions", name),
                    label_value_problem(name) or "name of a region must not be empty",
                )
            if region.budget:
                yield from threshold_problems(
                    f"{join_path('spec.regions', name)}.budget.alertThreshold", region.budget.alert_threshold
                )


class Address(Part):
    """Postal address of the site."""

    country: Annotated[str, Meta(description="Country code of two letters.")] = ""
    state: Annotated[str, Meta(description="State or province.")] = ""
    city: Annotated[str, Meta(description="City.")] = ""
    facility: Annotated[str, Meta(description="Building.")] = ""


class Location(Part):
    """Name and region of the site."""

    name: Annotated[
        str, Meta(min_length=1, description="Name of the site; latencies of other sites may refer to it.")
    ]
    region: Annotated[str, Meta(description="Region of the site for services and policies.")] = ""
    zone: Annotated[str, Meta(description="Zone within the region.")] = ""
    address: Annotated[Address, Meta(description="Postal address of the site.")] | None = None


class Accelerator(Part):
    """Accelerators of one model."""

    type: Annotated[str, Meta(min_length=1, description="Model, such as nvidia-a100.")]
    count: Annotated[int, Meta(ge=0, description="Total number.")]


class StaticCapacity(Part):
    """Total capacity of the site; an absent field sets no limit."""

    nodes: Annotated[int, Meta(ge=0, description="Number of machines.")]
    cores: Annotated[Amount, Meta(description="Cores of all machines.")] | None = None
    memory: Annotated[Quantity, Meta(description='Memory of all machines, such as "3200Gi".')] | None = None
    storage: Annotated[Quantity, Meta(description='Disk of all machines, such as "500Ti".')] | None = None
    accelerators: Annotated[tuple[Accelerator, ...], Meta(description="GPUs and other accelerators.")] = ()

    @property
    def millicores(self) -> int | None:
        return None if self.cores is None else parse_cores(self.cores)

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_bytes(self.memory)

    @property
    def storage_bytes(self) -> int | None:
        return None if self.storage is None else parse_bytes(self.storage)


class StaticNetwork(Part):
    """Network connection of the site."""

    egress: Annotated[str, Meta(description='Bandwidth to the internet, such as "10Gbps".')] | None = None
    latency_to: Annotated[
        dict[str, str],
        Meta(description='Latency to other sites, such as "65ms", by location, pool or {provider}-{region}.'),
    ] = {}

    @property
    def egress_bits(self) -> int | None:
        return None if self.egress is None else parse_bits(self.egress)

    @property
    def latency_ms(self) -> dict[str, int]:
        return {place: parse_millis(value) for place, value in self.latency_to.items()}


class Reserved(Part):
    """Amount of reserved capacity."""

    nodes: Annotated[int, Meta(ge=0, description="Number of machines.")] | None = None
    cores: Annotated[Amount, Meta(description="Cores.")] | None = None
    memory: Annotated[Quantity, Meta(description='Memory, such as "400Gi".')] | None = None

    @property
    def millicores(self) -> int:
        return 0 if self.cores is None else parse_cores(self.cores)

    @property
    def memory_bytes(self) -> int:
        return 0 if self.memory is None else parse_bytes(self.memory)


class ReservedFor(Part):
    """Services that may use the reserved capacity."""

    label_selector: Annotated[
        dict[str, str], Meta(description="Labels that the service must have with exactly these values.")
    ]


class Reservation(Part):
    """Capacity that is reserved for selected services."""

    reserved: Annotated[Reserved, Meta(description="Amount of reserved capacity.")] = Reserved()
    reserved_for: Annotated[
        tuple[ReservedFor, ...],
        Meta(description="Services that may use the reserved capacity; matching one entry is enough."),
    ] = ()

    def admits(self, labels: dict[str, str]) -> bool:
        return any(entry.label_selector.items() <= labels.items() for entry in self.reserved_for)


class StaticSpec(Part):
    """A site with a fixed number of machines."""

    location: Annotated[Location, Meta(description="Name and region of the site.")]
    capacity: Annotated[StaticCapacity, Meta(description="Total capacity of the site.")]
    provider: Annotated[
        str,
        Meta(
            description=(
                "Provider of the machines, such as vsphere or metal3. It must be one of the server's "
                "--providers; otherwise the site is closed."
            )
        ),
    ] = ""
    credentials_ref: Annotated[CredentialsRef, Meta(description="Credentials for the provider.")] | None = (
        None
    )
    provider_config: Annotated[
        OpaqueJson, Meta(description="Settings of the provider, in the provider's own format.")
    ] = {}
    network: Annotated[StaticNetwork, Meta(description="Network connection of the site.")] = StaticNetwork()
    compliance: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Compliance standards of the site, such as hipaa.")
    ] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="Capabilities of the machines, such as gpu or nvme.")
    ] = ()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction in which stored data stays, such as eu.")
    ] = ""
    reservation: (
        Annotated[Reservation, Meta(description="Capacity that is reserved for selected services.")] | None
    ) = None
    overflow: (
        Annotated[Overflow, Meta(description="The cloud that takes services when the site is full.")] | None
    ) = None
    notify: (
        Annotated[
            Notify,
            Meta(description="Notifications about the budget and the capacity; absent means events only."),
        ]
        | None
    ) = None


class CountUse(Part):
    """Total, used and free amount."""

    total: Annotated[Amount, Meta(description="Total.")] | None = None
    used: Annotated[Amount, Meta(description="In use.")] | None = None
    available: Annotated[Amount, Meta(description="Free.")] | None = None


class ByteUse(Part):
    """Total, used and free bytes."""

    total: Annotated[Quantity, Meta(description="Total.")] | None = None
    used: Annotated[Quantity, Meta(description="In use.")] | None = None
    available: Annotated[Quantity, Meta(description="Free.")] | None = None


class StaticUtilization(Part):
    """Resources of the site in use."""

    nodes: Annotated[CountUse, Meta(description="Number of machines.")] | None = None
    cores: Annotated[CountUse, Meta(description="Cores.")] | None = None
    memory: Annotated[ByteUse, Meta(description="Memory.")] | None = None
    storage: Annotated[ByteUse, Meta(description="Disk.")] | None = None


class StaticClusters(Part):
    """Clusters at the site."""

    total: Annotated[int, Meta(description="Number of clusters.")] | None = None
    names: Annotated[tuple[str, ...], Meta(description="Names of the clusters.")] = ()


class StaticStatus(Status):
    """Resources of the site in use, and clusters at the site."""

    utilization: Annotated[StaticUtilization, Meta(description="Resources of the site in use.")] | None = None
    clusters: Annotated[StaticClusters, Meta(description="Clusters at the site.")] | None = None
    next_cluster_sequence: (
        Annotated[int, Meta(description="Number of the next cluster; never reused.")] | None
    ) = None
    observed: Annotated[
        tuple[ObservedMachine, ...],
        OBSERVED_BY_OFFER,
        Meta(
            description=(
                "What the real machines report, if `capacity` divided by `nodes` is more. A record holds until "
                "the spec changes or a newer machine reports more."
            )
        ),
    ] = ()


class StaticInfrastructure(Kind):
    """Owned capacity: a site with a fixed number of machines. Placement uses it before capacity that costs
    money."""

    resource: ClassVar[Resource] = Resource(
        kind="StaticInfrastructure",
        plural="staticinfrastructures",
        short_names=("si",),
        columns=(
            Column("Location", ".spec.location.name"),
            Column("Region", ".spec.location.region"),
            Column("Nodes", ".spec.capacity.nodes", "integer"),
            Column("Used", ".status.utilization.nodes.used", "number"),
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Pressure", '.status.conditions[?(@.type=="CapacityPressure")].status'),
            Column("Provider", ".spec.provider", priority=1),
            Column("Overflow", ".spec.overflow.target", priority=1),
            Column("Clusters", ".status.clusters.total", "integer", 1),
        ),
    )

    spec: StaticSpec
    status: StaticStatus = StaticStatus()

    def problems(self) -> Iterator[Cause]:
        network, reservation = self.spec.network, self.spec.reservation
        wrong = [
            *number_problems(self.spec, "spec"),
            *quantity_problems("spec.capacity.memory", self.spec.capacity.memory, parse_bytes),
            *quantity_problems("spec.capacity.storage", self.spec.capacity.storage, parse_bytes),
            *quantity_problems("spec.network.egress", network.egress, parse_bits),
        ]
        for place, value in network.latency_to.items():
            wrong += quantity_problems(join_path("spec.network.latencyTo", place), value, parse_millis)
        if reservation:
            path = "spec.reservation.reserved.memory"
            wrong += quantity_problems(path, reservation.reserved.memory, parse_bytes)
        yield from wrong
        if self.spec.notify:
            yield from self.spec.notify.problems("spec.notify")
        if self.spec.credentials_ref:
            yield from self.spec.credentials_ref.problems("spec.credentialsRef")
        models = Counter(accelerator.type for accelerator in self.spec.capacity.accelerators)
        for model in (model for model, count in models.items() if count > 1):
            yield Cause(
                "spec.capacity.accelerators",
                f'lists "{model}" more than once; add up the counts',
                "FieldValueDuplicate",
            )
        if self.spec.overflow:
            yield from self.spec.overflow.problems("spec.overflow")
        # The reservation is compared with the capacity, which needs readable amounts on both sides.
        if reservation and not wrong:
            yield from _reservation_problems(reservation, self.spec.capacity)


def _reservation_problems(reservation: Reservation, capacity: StaticCapacity) -> Iterator[Cause]:
    path, reserved = "spec.reservation.reserved", reservation.reserved
    if reserved.nodes is not None and reserved.nodes > capacity.nodes:
        yield Cause(
            f"{path}.nodes", f"must be at most capacity.nodes ({capacity.nodes}), got {reserved.nodes}"
        )
    if capacity.millicores is not None and reserved.millicores > capacity.millicores:
        yield Cause(
            f"{path}.cores", f"must be at most capacity.cores ({capacity.cores}), got {reserved.cores}"
        )
    if capacity.memory_bytes is not None and reserved.memory_bytes > capacity.memory_bytes:
        yield Cause(
            f"{path}.memory", f"must be at most capacity.memory ({capacity.memory}), got {reserved.memory}"
        )
    for index, entry in enumerate(reservation.reserved_for):
        yield from label_problems(
            entry.label_selector, f"spec.reservation.reservedFor[{index}].labelSelector"
        )
