"""LatticeLedger: the machines that one budget pays for, and the money that the budget has spent."""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.cloud_budget import DEFAULT_ALERT_MILLIONTHS, CloudBudget
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.selector import dns_label_problem, subdomain_problem
from lattice.kinds.pool import PRICE_CURRENCY, LatticePool

# Spending is counted in units of one micro-dollar per hour for one microsecond: 3,600,000,000 units make a
# micro-dollar.
MICROSECONDS_PER_HOUR = 3_600_000_000
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_CLUSTER_NUMBER = re.compile(r"-([0-9]{3,})$")
_LEDGER_NAME_PREFIXES = {
    "LatticePool": "pool",
    "CloudInfrastructure": "cloud",
    "StaticInfrastructure": "static",
}


class Account(Part):
    """The object that states the budget. A StaticInfrastructure has a budget for its overflow to a cloud; its
    owned machines cost nothing, and their ledger only keeps the highest cluster number."""

    kind: Annotated[
        Literal["LatticePool", "CloudInfrastructure", "StaticInfrastructure"],
        Meta(description="Kind of the object that states the budget."),
    ]
    name: Annotated[str, Meta(min_length=1, description="Name of that object.")]
    region: Annotated[
        str,
        Meta(
            description=(
                'Region of a CloudInfrastructure; absent for the budget over all regions. "clusters" for '
                "the ledger that keeps the highest cluster number of a StaticInfrastructure."
            )
        ),
    ] = ""

    @property
    def ledger_name(self) -> str:
        """Name of the account's ledger: pool.us-east, cloud.aws, cloud.aws.us-east-1,
        static.dc-east.overflow, static.dc-east.clusters.

        No two accounts share a name.
        """
        prefix = _LEDGER_NAME_PREFIXES[self.kind]
        suffix: list[str] = []
        if self.kind == "StaticInfrastructure":
            suffix = [self.region or "overflow"]
        elif self.region:
            suffix = [self.region]
        plain = ".".join([prefix, self.name, *suffix])
        # Cloud a.b, and region b of cloud a, would both have the name cloud.a.b.
        is_ambiguous = self.kind == "CloudInfrastructure" and (
            "." in self.name or bool(self.region and dns_label_problem(self.region))
        )
        if not is_ambiguous and not subdomain_problem(plain):
            return plain
        # A digest of the account keeps the name unique if the plain name is ambiguous or not a valid name.
        digest = sha256(f"{self.kind}\0{self.name}\0{self.region}".encode()).hexdigest()[:24]
        slugs = [
            re.sub(r"[^a-z0-9]+", "-", part.lower())[:60].strip("-") or "x" for part in (self.name, *suffix)
        ]
        return ".".join([f"{prefix}-x", *slugs, digest])

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}" + (f" region {self.region}" if self.region else "")


def cluster_number(cluster: str) -> int:
    """The number in a cluster's name: 3 for us-east-003; 0 for a name without a number."""
    match = _CLUSTER_NUMBER.search(cluster)
    return int(match[1]) if match else 0


class LedgerSpec(Part):
    """The budget, as the pool, cloud or data center states the budget."""

    budget: Annotated[Account, Meta(description="Object that states the budget.")]
    limit_micros: (
        Annotated[int, Meta(ge=0, description="Micro-dollars per month; absent means no limit.")] | None
    ) = None
    hard: Annotated[
        bool, Meta(description="true: Lattice provisions nothing beyond the limit; false: it only warns.")
    ] = False
    alert_millionths: Annotated[
        int, Meta(ge=0, description="Share of the limit that raises an alert, in millionths.")
    ] = DEFAULT_ALERT_MILLIONTHS


class Lot(Part):
    """Machines of one class with the same price, the price of now: a price change re-prices the lot."""

    node_class: Annotated[str, Meta(min_length=1, description="LatticeNodeClass of the machines.")]
    count: Annotated[int, Meta(ge=1, description="Number of machines.")]
    micros: Annotated[int, Meta(ge=0, description="Micro-dollars per hour for one machine.")]
    price_unknown: Annotated[
        bool,
        Meta(
            description=(
                "true: the price of the class is unknown now; micros is the last known price, or 0 if no price "
                "was ever known."
            )
        ),
    ] = False

    @property
    def rate(self) -> int:
        """Micro-dollars per hour for all machines of the lot."""
        return self.count * self.micros


class Refusal(Part):
    """A purchase that a hard limit refuses now. Lattice removes the refusal once the purchase succeeds or no
    service wants it any more."""

    service: Annotated[
        str, Meta(min_length=1, description="namespace/name of the service that needs the machines.")
    ]
    rule: Annotated[
        Literal["RunRate", "CalendarMonth"],
        Meta(
            description=(
                "Rule that refuses: RunRate is 30 days at the hourly rate; CalendarMonth is the spending "
                "projected to the end of the month."
            )
        ),
    ]
    need_micros: Annotated[int, Meta(ge=0, description="Micro-dollars per hour of the smallest purchase.")]
    have_micros: Annotated[
        int, Meta(ge=0, description="Micro-dollars per hour that the limit still allowed.")
    ] = 0
    limit_needed_micros: Annotated[
        int, Meta(ge=0, description="Smallest limit, in micro-dollars per month, that allows the purchase.")
    ] = 0
    at: Annotated[str, Meta(description="Time of the first refusal.")] = ""


class LedgerStatus(Status):
    """Committed rate and spending. A machine is paid for until its removal is confirmed."""

    message: Annotated[str, Meta(description="Summary of the budget at asOf, in dollars.")] = ""
    committed_micros: Annotated[
        int, Meta(ge=0, description="Micro-dollars per hour for all machines; the sum of all lots.")
    ] = 0
    spent_micros: Annotated[int, Meta(ge=0, description="Micro-dollars spent in `month`, until asOf.")] = 0
    remainder: Annotated[
        int,
        Meta(
            ge=0,
            lt=MICROSECONDS_PER_HOUR,
            description="Spending below one micro-dollar, in units of 1/3,600,000,000 micro-dollar.",
        ),
    ] = 0
    month: Annotated[str, Meta(description='Calendar month (UTC) of spentMicros, such as "2026-11".')] = ""
    as_of: Annotated[str, Meta(description="Time, to the microsecond, up to which spending is counted.")] = ""
    past: Annotated[
        dict[str, int], Meta(description="Micro-dollars spent in earlier months, at most 13 months.")
    ] = {}
    last_cluster: Annotated[
        int,
        Meta(
            ge=0,
            description=(
                "Highest recorded number of a cluster under this budget or, for a ledger named "
                "static.*.clusters, at the site. A number is never reused, even if the pool is deleted "
                "and created again."
            ),
        ),
    ] = 0
    # The ledger stores lots, not single machines. A lot takes about 80 bytes, so three ledgers that all pay
    # for the same 4,000 clusters fit into one commit (1 MiB). LatticeCluster lists the machines; a lot states
    # how many machines the cluster can release, and at which price.
    machines: Annotated[
        dict[str, tuple[Lot, ...]], Meta(description="Machines that are paid for, by LatticeCluster.")
    ] = {}
    refused: Annotated[
        tuple[Refusal, ...],
        Meta(description="Purchases that the hard limit refuses now, by service."),
    ] = ()


class LatticeLedger(Kind):
    """The record of what one budget pays and has paid. It outlives the object that states the budget, so that
    deleting the object loses no spending."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeLedger",
        plural="latticeledgers",
        short_names=("ll",),
        managed_hint=(
            "Lattice creates ledgers for budgets: change the budget of the LatticePool or "
            "CloudInfrastructure, or the overflow limits of the StaticInfrastructure"
        ),
        columns=(
            Column("Hard", ".spec.hard", "boolean"),
            Column("Month", ".status.month"),
            Column("Phase", ".status.phase"),
            Column("Money", ".status.message"),
            Column("Limit", ".spec.limitMicros", "integer", 1, "Micro-dollars per month."),
            Column("Committed", ".status.committedMicros", "integer", 1, "Micro-dollars per hour."),
            Column("Spent", ".status.spentMicros", "integer", 1, "Micro-dollars in this calendar month."),
            Column("AsOf", ".status.asOf", "date", 1),
        ),
    )

    spec: LedgerSpec
    status: LedgerStatus = LedgerStatus()

    def problems(self) -> Iterator[Cause]:
        status, account = self.status, self.spec.budget
        # The name follows from the account, so one account has one ledger.
        if self.metadata.name != account.ledger_name:
            yield Cause(
                "metadata.name", f'must be "{account.ledger_name}" for {account}, got "{self.metadata.name}"'
            )
        if account.region and account.kind != "CloudInfrastructure":
            yield Cause("spec.budget.region", f'must be absent for a {account.kind}, got "{account.region}"')
        # Spending is price times time without rounding, so the time has microseconds (I-22).
        if not _TIME.fullmatch(status.as_of):
            yield Cause(
                "status.asOf", f'must be a time such as 2026-11-15T07:40:00.000000Z, got "{status.as_of}"'
            )
        if status.month != status.as_of[:7]:
            yield Cause("status.month", f'must be the month of asOf ("{status.as_of}"), got "{status.month}"')
        for month in status.past:
            if not _MONTH.fullmatch(month) or month >= status.month:
                yield Cause("status.past", f'must name months before "{status.month}", got "{month}"')
        committed = 0
        for lots in status.machines.values():
            committed += sum(lot.rate for lot in lots)
        # A machine may exist only while a ledger pays for it (I-22), so the committed rate must be the sum of
        # all lots.
        if committed != status.committed_micros:
            yield Cause(
                "status.committedMicros",
                f"must equal the sum of the machines ({committed}), got {status.committed_micros}",
            )


def pool_ledger_spec(pool: LatticePool) -> LedgerSpec:
    """The ledger spec of a pool's budget, which is a hard limit. A pool without a budget has a ledger without
    a limit, and so has a pool whose budget cannot be compared with prices: that pool is closed instead."""
    account = Account(kind="LatticePool", name=pool.metadata.name)
    budget = pool.spec.budget
    if budget is None or budget.currency != PRICE_CURRENCY:
        return LedgerSpec(budget=account, hard=True)
    return LedgerSpec(
        budget=account, limit_micros=budget.limit_micros, hard=True, alert_millionths=budget.alert_millionths
    )


def cloud_ledger_spec(cloud: CloudInfrastructure, region: str = "") -> LedgerSpec | None:
    """The ledger spec of a cloud's budget, or of the budget of one region; None if the cloud has no such
    region.

    A region without its own alert threshold or hard limit has those of the cloud.
    """
    account = Account(kind="CloudInfrastructure", name=cloud.metadata.name, region=region)
    cloud_budget = cloud.spec.budget or CloudBudget()
    if region and region not in cloud.spec.regions:
        return None
    budget = (cloud.spec.regions[region].budget or CloudBudget()) if region else cloud_budget
    is_hard = cloud_budget.hard_limit if budget.hard_limit is None else budget.hard_limit
    alert = cloud_budget if budget.alert_threshold is None else budget
    return LedgerSpec(
        budget=account,
        limit_micros=budget.limit_micros,
        hard=bool(is_hard),
        alert_millionths=alert.alert_millionths,
    )


def overflow_ledger_spec(static: StaticInfrastructure) -> LedgerSpec | None:
    """The ledger spec of a site's overflow, which is a hard limit; None if overflow is not enabled."""
    overflow = static.spec.overflow
    if overflow is None or not overflow.enabled:
        return None
    account = Account(kind="StaticInfrastructure", name=static.metadata.name)
    return LedgerSpec(budget=account, limit_micros=overflow.limits.spend_micros, hard=True)


def ledger_spec(account: Account, owner: Kind | None) -> LedgerSpec | None:
    """The ledger spec that the owner states for the account now; None if the owner or the budget is gone."""
    match owner:
        case LatticePool():
            return pool_ledger_spec(owner)
        case CloudInfrastructure():
            return cloud_ledger_spec(owner, account.region)
        case StaticInfrastructure():
            return overflow_ledger_spec(owner)
    return None
