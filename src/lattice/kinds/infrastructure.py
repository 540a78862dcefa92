"""CloudInfrastructure and StaticInfrastructure: what can be rented, what is owned, and when does the second spill into the first?"""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_SET, Column, Kind, OpaqueJson, Part, Resource, Status
from lattice.kinds.meta.quantity import (
    Amount,
    Quantity,
    dollars_to_micros,
    number_problems,
    parse_bits,
    parse_bytes,
    parse_cores,
    parse_millis,
    quantity_problems,
    share_as_fraction,
    threshold_problems,
)
from lattice.kinds.meta.selector import label_problems, label_value_problem, subdomain_problem
from lattice.kinds.meta.validator import join_path

CREDENTIALS_NAMESPACE = "lattice-system"  # the namespace of providers' logins


DEFAULT_ALERT_MILLIONTHS = 800_000  # millionths of the budget
OVERFLOW_TRIGGER_MILLIONTHS = 900_000  # millionths of the capacity


class CredentialsRef(Part):
    """The Secret that holds the login for the provider."""

    name: Annotated[str, Meta(min_length=1, description="Name of the Secret.")]
    namespace: Annotated[
        str,
        Meta(
            description="Namespace of the Secret: lattice-system, where logins are kept, and no other; the same if absent."
        ),
    ] = CREDENTIALS_NAMESPACE

    def problems(self, path: str) -> Iterator[Cause]:
        yield from secret_name_problems(f"{path}.name", self.name)
        if self.namespace != CREDENTIALS_NAMESPACE:
            yield Cause(
                f"{path}.namespace",
                f'must be {CREDENTIALS_NAMESPACE}, where logins are kept, got "{self.namespace[:80]}"',
            )


def secret_name_problems(path: str, name: str) -> Iterator[Cause]:
    if wrong := subdomain_problem(name):
        yield Cause(path, wrong)


class CloudBudget(Part):
    """Money per month of 30 days, in US dollars."""

    monthly: Annotated[Amount, Meta(description="Most that should be spent in a month.")] | None = None
    alert_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share of the budget that raises an alert, as 80 percent or as 0.8; 80 by default."
            ),
        ]
        | None
    ) = None
    hard_limit: (
        Annotated[
            bool,
            Meta(
                description="true: nothing is provisioned beyond it; false: it only warns. Absent: false; in a region, as for the whole."
            ),
        ]
        | None
    ) = None

    @property
    def limit_micros(self) -> int | None:
        return None if self.monthly is None else dollars_to_micros(self.monthly)

    @property
    def alert_millionths(self) -> int:
        return (
            DEFAULT_ALERT_MILLIONTHS
            if self.alert_threshold is None
            else dollars_to_micros(share_as_fraction(self.alert_threshold))
        )


class CloudDefaults(Part):
    """What holds for every region that says nothing else."""

    compliance: Annotated[tuple[str, ...], LIST_SET, Meta(description="Certificates of every region.")] = ()
    capabilities: Annotated[tuple[str, ...], LIST_SET, Meta(description="Capabilities of every region.")] = ()
    max_clusters_per_region: Annotated[int, Meta(ge=0, description="Most clusters in one region.")] | None = (
        None
    )
    max_nodes_per_cluster: Annotated[int, Meta(ge=1, description="Most machines in one cluster.")] | None = (
        None
    )


class RegionQuotas(Part):
    """Ceilings of one region; the smaller of these and the defaults holds."""

    max_clusters: Annotated[int, Meta(ge=0, description="Most clusters in this region.")] | None = None
    max_nodes_per_cluster: (
        Annotated[int, Meta(ge=1, description="Most machines in one cluster of this region.")] | None
    ) = None


class CloudRegion(Part):
    """One region that may be used."""

    budget: (
        Annotated[CloudBudget, Meta(description="Budget of this region, inside the whole one: both hold.")]
        | None
    ) = None
    compliance: (
        Annotated[
            tuple[str, ...],
            LIST_SET,
            Meta(description="Certificates of this region, in place of the default ones."),
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
    quotas: Annotated[RegionQuotas, Meta(description="Ceilings of this region.")] = RegionQuotas()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction that data kept here stays in, such as eu.")
    ] = ""


class CloudSpec(Part):
    """A cloud account, its money and its regions."""

    provider: Annotated[
        str, Meta(min_length=1, description="Cloud provider: aws, gcp, azure or another that is paid by use.")
    ]
    credentials_ref: Annotated[CredentialsRef, Meta(description="Login for provisioning.")] | None = None
    budget: (
        Annotated[CloudBudget, Meta(description="Budget over all regions; absent means no limit.")] | None
    ) = None
    defaults: Annotated[
        CloudDefaults, Meta(description="What holds for every region that says nothing else.")
    ] = CloudDefaults()
    regions: Annotated[
        dict[str, CloudRegion], Meta(description="Regions that may be used, by the provider's name.")
    ] = {}

    def compliance_of(self, region: str) -> tuple[str, ...]:
        own = self.regions[region].compliance
        return self.defaults.compliance if own is None else own

    def capabilities_of(self, region: str) -> tuple[str, ...]:
        own = self.regions[region].capabilities
        return self.defaults.capabilities if own is None else own

    def max_clusters_of(self, region: str) -> int | None:
        return _lower_limit(self.defaults.max_clusters_per_region, self.regions[region].quotas.max_clusters)

    def max_nodes_per_cluster_of(self, region: str) -> int | None:
        return _lower_limit(
            self.defaults.max_nodes_per_cluster, self.regions[region].quotas.max_nodes_per_cluster
        )


class CloudSpend(Part):
    """Money spent in this calendar month."""

    monthly: Annotated[Amount, Meta(description="Over all regions.")] | None = None
    by_region: Annotated[dict[str, Amount], Meta(description="By region; the parts sum to the whole.")] = {}
    projected: (
        Annotated[Amount, Meta(description="Spent plus the present rate until the month ends.")] | None
    ) = None


class CloudClusters(Part):
    """How many clusters there are."""

    total: Annotated[int, Meta(description="Over all regions.")] | None = None
    by_region: Annotated[dict[str, int], Meta(description="By region.")] = {}


class CloudStatus(Status):
    """What is spent and what runs."""

    current_spend: Annotated[CloudSpend, Meta(description="Money spent in this calendar month.")] | None = (
        None
    )
    clusters: Annotated[CloudClusters, Meta(description="How many clusters there are.")] | None = None
    next_cluster_sequence: Annotated[
        dict[str, int], Meta(description="By region, the number of the next cluster; never given twice.")
    ] = {}


class CloudInfrastructure(Kind):
    """Metered supply: a cloud account that grows at will and is bounded by money."""

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
    """Where the place is on the map."""

    country: Annotated[str, Meta(description="Country, as two letters.")] = ""
    state: Annotated[str, Meta(description="State or province.")] = ""
    city: Annotated[str, Meta(description="City.")] = ""
    facility: Annotated[str, Meta(description="Building.")] = ""


class Location(Part):
    """Which place this is."""

    name: Annotated[
        str, Meta(min_length=1, description="Name of the place; latencies of other places may refer to it.")
    ]
    region: Annotated[str, Meta(description="Region that services and policies count it in.")] = ""
    zone: Annotated[str, Meta(description="Zone inside the region.")] = ""
    address: Annotated[Address, Meta(description="Where the place is on the map.")] | None = None


class Accelerator(Part):
    """Accelerators of one model."""

    type: Annotated[str, Meta(min_length=1, description="Model, such as nvidia-a100.")]
    count: Annotated[int, Meta(ge=0, description="How many there are in all.")]


class StaticCapacity(Part):
    """Everything there is; what is absent does not limit."""

    nodes: Annotated[int, Meta(ge=0, description="Machines.")]
    cores: Annotated[Amount, Meta(description="Cores over all machines.")] | None = None
    memory: Annotated[Quantity, Meta(description='Memory over all machines, such as "3200Gi".')] | None = None
    storage: Annotated[Quantity, Meta(description='Disk over all machines, such as "500Ti".')] | None = None
    accelerators: Annotated[tuple[Accelerator, ...], Meta(description="GPUs and the like.")] = ()

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
    """How well the place is connected."""

    egress: Annotated[str, Meta(description='Bandwidth to the internet, such as "10Gbps".')] | None = None
    latency_to: Annotated[
        dict[str, str],
        Meta(
            description='Latency to other places, such as "65ms", by location, pool or {provider}-{region}.'
        ),
    ] = {}

    @property
    def egress_bits(self) -> int | None:
        return None if self.egress is None else parse_bits(self.egress)

    @property
    def latency_ms(self) -> dict[str, int]:
        return {place: parse_millis(value) for place, value in self.latency_to.items()}


class Reserved(Part):
    """An amount that is set aside."""

    nodes: Annotated[int, Meta(ge=0, description="Machines.")] | None = None
    cores: Annotated[Amount, Meta(description="Cores.")] | None = None
    memory: Annotated[Quantity, Meta(description='Memory, such as "400Gi".')] | None = None

    @property
    def millicores(self) -> int:
        return 0 if self.cores is None else parse_cores(self.cores)

    @property
    def memory_bytes(self) -> int:
        return 0 if self.memory is None else parse_bytes(self.memory)


class ReservedFor(Part):
    """Services that may use what is set aside."""

    label_selector: Annotated[
        dict[str, str], Meta(description="Labels that the service must have with exactly these values.")
    ]


class Reservation(Part):
    """Capacity that is kept for the services that matter most."""

    reserved: Annotated[Reserved, Meta(description="How much is set aside.")] = Reserved()
    reserved_for: Annotated[
        tuple[ReservedFor, ...], Meta(description="Who may use it; matching one entry is enough.")
    ] = ()

    def admits(self, labels: dict[str, str]) -> bool:
        return any(entry.label_selector.items() <= labels.items() for entry in self.reserved_for)


class OverflowTrigger(Part):
    """When overflow begins."""

    capacity_threshold: (
        Annotated[
            Amount,
            Meta(
                description="Share in use from which the cloud is open, as 90 percent or as 0.9; 90 by default."
            ),
        ]
        | None
    ) = None


class OverflowLimits(Part):
    """How far overflow goes; what is absent does not limit."""

    max_clusters: Annotated[int, Meta(ge=0, description="Most clusters in the cloud.")] | None = None
    max_monthly_spend: Annotated[Amount, Meta(description="Most dollars per month in the cloud.")] | None = (
        None
    )

    @property
    def spend_micros(self) -> int | None:
        return None if self.max_monthly_spend is None else dollars_to_micros(self.max_monthly_spend)


class Overflow(Part):
    """Where work goes when this place is full."""

    enabled: Annotated[bool, Meta(description="Whether it may go anywhere at all; false by default.")] = False
    target: Annotated[str, Meta(description="Name of the CloudInfrastructure that takes it.")] = ""
    regions: Annotated[
        tuple[str, ...], Meta(description="Regions of the target to try first, in this order.")
    ] = ()
    trigger: Annotated[OverflowTrigger, Meta(description="When overflow begins.")] = OverflowTrigger()
    limits: Annotated[OverflowLimits, Meta(description="How far overflow goes.")] = OverflowLimits()

    @property
    def trigger_millionths(self) -> int:
        stated = self.trigger.capacity_threshold
        return OVERFLOW_TRIGGER_MILLIONTHS if stated is None else dollars_to_micros(share_as_fraction(stated))

    def problems(self, path: str) -> Iterator[Cause]:
        if self.enabled and not self.target:
            yield Cause(
                f"{path}.target",
                "must name a CloudInfrastructure when overflow is enabled",
                "FieldValueRequired",
            )
        yield from threshold_problems(f"{path}.trigger.capacityThreshold", self.trigger.capacity_threshold)


class StaticSpec(Part):
    """A place with a fixed number of machines."""

    location: Annotated[Location, Meta(description="Which place this is.")]
    capacity: Annotated[StaticCapacity, Meta(description="Everything there is.")]
    provider: Annotated[
        str,
        Meta(
            description="What makes machines there, such as vsphere or metal3: a name of the server's --providers, or it is closed."
        ),
    ] = ""
    credentials_ref: Annotated[CredentialsRef, Meta(description="Login for the provider.")] | None = None
    provider_config: Annotated[
        OpaqueJson, Meta(description="Settings of the provider, in its own words.")
    ] = {}
    network: Annotated[StaticNetwork, Meta(description="How well the place is connected.")] = StaticNetwork()
    compliance: Annotated[tuple[str, ...], LIST_SET, Meta(description="Certificates of the place.")] = ()
    capabilities: Annotated[
        tuple[str, ...], LIST_SET, Meta(description="What the machines can do, such as gpu or nvme.")
    ] = ()
    data_residency: Annotated[
        str, Meta(description="Jurisdiction that data kept here stays in, such as eu.")
    ] = ""
    reservation: (
        Annotated[Reservation, Meta(description="Capacity kept for the services that matter most.")] | None
    ) = None
    overflow: Annotated[Overflow, Meta(description="Where work goes when this place is full.")] | None = None


class CountUse(Part):
    """So many in all, in use and free."""

    total: Annotated[Amount, Meta(description="In all.")] | None = None
    used: Annotated[Amount, Meta(description="In use.")] | None = None
    available: Annotated[Amount, Meta(description="Free.")] | None = None


class ByteUse(Part):
    """So many bytes in all, in use and free."""

    total: Annotated[Quantity, Meta(description="In all.")] | None = None
    used: Annotated[Quantity, Meta(description="In use.")] | None = None
    available: Annotated[Quantity, Meta(description="Free.")] | None = None


class StaticUtilization(Part):
    """What is in use."""

    nodes: Annotated[CountUse, Meta(description="Machines.")] | None = None
    cores: Annotated[CountUse, Meta(description="Cores.")] | None = None
    memory: Annotated[ByteUse, Meta(description="Memory.")] | None = None
    storage: Annotated[ByteUse, Meta(description="Disk.")] | None = None


class StaticClusters(Part):
    """Which clusters run there."""

    total: Annotated[int, Meta(description="How many.")] | None = None
    names: Annotated[tuple[str, ...], Meta(description="Their names.")] = ()


class StaticStatus(Status):
    """What is in use."""

    utilization: Annotated[StaticUtilization, Meta(description="What is in use.")] | None = None
    clusters: Annotated[StaticClusters, Meta(description="Which clusters run there.")] | None = None
    next_cluster_sequence: (
        Annotated[int, Meta(description="Number of the next cluster; never given twice.")] | None
    ) = None


class StaticInfrastructure(Kind):
    """Fixed supply: machines that are owned or reserved, bounded by what is there, used before anything that costs money."""

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
        wrong = [*number_problems(self.spec, "spec"), *_unit_problems(self.spec)]
        yield from wrong
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
        if self.spec.reservation and not wrong:
            yield from _reservation_problems(self.spec.reservation, self.spec.capacity)


def _unit_problems(spec: StaticSpec) -> Iterator[Cause]:
    yield from quantity_problems("spec.capacity.memory", spec.capacity.memory, parse_bytes)
    yield from quantity_problems("spec.capacity.storage", spec.capacity.storage, parse_bytes)
    yield from quantity_problems("spec.network.egress", spec.network.egress, parse_bits)
    for place, value in spec.network.latency_to.items():
        yield from quantity_problems(join_path("spec.network.latencyTo", place), value, parse_millis)
    if spec.reservation:
        yield from quantity_problems(
            "spec.reservation.reserved.memory", spec.reservation.reserved.memory, parse_bytes
        )


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


def _lower_limit(left: int | None, right: int | None) -> int | None:
    stated = [limit for limit in (left, right) if limit is not None]
    return min(stated, default=None)
