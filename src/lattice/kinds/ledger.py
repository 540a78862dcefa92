"""LatticeLedger: what does one budget pay for, and what has it paid?"""

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.infrastructure import (
    DEFAULT_ALERT_MILLIONTHS,
    CloudBudget,
    CloudInfrastructure,
    StaticInfrastructure,
)
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status
from lattice.kinds.meta.selector import dns_label_problem, subdomain_problem
from lattice.kinds.pool import LatticePool

MICROSECONDS_PER_HOUR = 3_600_000_000  # microseconds; a rate in micro-dollars per hour times microseconds counts in parts of a micro-dollar so small
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_CLUSTER_NUMBER = re.compile(r"-([0-9]{3,})$")
_LEDGER_NAME_PREFIXES = {
    "LatticePool": "pool",
    "CloudInfrastructure": "cloud",
    "StaticInfrastructure": "static",
}


class Account(Part):
    """Whose budget it is. A StaticInfrastructure has one for its overflow; what is owned costs nothing: only its clusters are counted."""

    kind: Annotated[
        Literal["LatticePool", "CloudInfrastructure", "StaticInfrastructure"],
        Meta(description="Kind of the object that states the budget."),
    ]
    name: Annotated[str, Meta(min_length=1, description="Name of that object.")]
    region: Annotated[
        str,
        Meta(
            description='Region of a CloudInfrastructure; absent for the budget over all of them. "clusters" of a StaticInfrastructure.'
        ),
    ] = ""

    @property
    def ledger_name(self) -> str:
        """Name of its ledger: pool.us-east, cloud.aws, cloud.aws.us-east-1, static.dc-east.overflow, static.dc-east.clusters. No two
        accounts share one."""
        word = _LEDGER_NAME_PREFIXES[self.kind]
        tail = (
            [self.region or "overflow"]
            if self.kind == "StaticInfrastructure"
            else [self.region]
            if self.region
            else []
        )
        plain = ".".join([word, self.name, *tail])
        if not subdomain_problem(plain) and not (self.kind == "CloudInfrastructure" and self._is_ambiguous):
            return plain
        exact = sha256(f"{self.kind}\0{self.name}\0{self.region}".encode()).hexdigest()[:24]
        return ".".join([f"{word}-x", *(_slug(part) for part in (self.name, *tail)), exact])

    @property
    def _is_ambiguous(self) -> bool:
        """Cloud a.b and region b of cloud a must not meet in cloud.a.b."""
        return "." in self.name or bool(self.region and dns_label_problem(self.region))

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}" + (f" region {self.region}" if self.region else "")


def cluster_number(cluster: str) -> int:
    """3 of us-east-003; 0 where a name has none."""
    found = _CLUSTER_NUMBER.search(cluster)
    return int(found[1]) if found else 0


def _slug(part: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", part.lower())[:60].strip("-") or "x"


class LedgerSpec(Part):
    """The budget, as its object states it."""

    budget: Annotated[Account, Meta(description="Whose budget it is.")]
    limit_micros: (
        Annotated[int, Meta(ge=0, description="Micro-dollars per month; absent means no limit.")] | None
    ) = None
    hard: Annotated[
        bool, Meta(description="true: nothing is provisioned beyond the limit; false: it only warns.")
    ] = False
    alert_millionths: Annotated[
        int, Meta(ge=0, description="Share of the limit that raises an alert, in millionths.")
    ] = DEFAULT_ALERT_MILLIONTHS


class Lot(Part):
    """Machines of one class that were taken at one price."""

    node_class: Annotated[str, Meta(min_length=1, description="LatticeNodeClass of the machines.")]
    count: Annotated[int, Meta(ge=1, description="How many there are.")]
    micros: Annotated[int, Meta(ge=0, description="Micro-dollars per hour for each.")]

    @property
    def rate(self) -> int:
        """Micro-dollars per hour for all of them."""
        return self.count * self.micros


class LedgerStatus(Status):
    """What it pays for and what it has paid. A machine is paid for until it is confirmed to be gone."""

    message: Annotated[str, Meta(description="Where the budget stood at asOf, in dollars.")] = ""
    committed_micros: Annotated[
        int, Meta(ge=0, description="Micro-dollars per hour for all machines; the lots add up to it.")
    ] = 0
    spent_micros: Annotated[int, Meta(ge=0, description="Micro-dollars spent in `month`, until asOf.")] = 0
    remainder: Annotated[
        int,
        Meta(
            ge=0,
            lt=MICROSECONDS_PER_HOUR,
            description="What is spent beyond whole micro-dollars, in parts of which 3,600,000,000 make one.",
        ),
    ] = 0
    month: Annotated[
        str, Meta(description='Calendar month, UTC, that spentMicros counts, such as "2026-11".')
    ] = ""
    as_of: Annotated[str, Meta(description="Time, to the microsecond, until which spending is counted.")] = ""
    past: Annotated[
        dict[str, int], Meta(description="Micro-dollars spent in the months before, at most 13 of them.")
    ] = {}
    last_cluster: Annotated[
        int,
        Meta(
            ge=0,
            description="Highest number of a cluster that it ever paid for: none is given twice, though its pool be made again.",
        ),
    ] = 0
    # By cluster and price, not by machine: some 80 bytes for each, so that a commit holds three nested ledgers of 4,000 clusters. The
    # machines themselves are in LatticeCluster; this is what each cluster may give back, and at which price.
    machines: Annotated[
        dict[str, tuple[Lot, ...]], Meta(description="Machines that are paid for, by LatticeCluster.")
    ] = {}


class LatticeLedger(Kind):
    """The account book of one budget. It outlives the object that states the budget, so that deleting one never forgets money."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeLedger",
        plural="latticeledgers",
        short_names=("ll",),
        managed_hint="ledgers follow from budgets: change the budget of the LatticePool or CloudInfrastructure, "
        "or the overflow limits of the StaticInfrastructure",
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
        if self.metadata.name != account.ledger_name:
            yield Cause(
                "metadata.name", f'must be "{account.ledger_name}" for {account}, got "{self.metadata.name}"'
            )
        if account.region and account.kind != "CloudInfrastructure":
            yield Cause("spec.budget.region", f'must be absent for a {account.kind}, got "{account.region}"')
        if not _TIME.fullmatch(status.as_of):
            yield Cause(
                "status.asOf", f'must be a time such as 2026-11-15T07:40:00.000000Z, got "{status.as_of}"'
            )
        if status.month != status.as_of[:7]:
            yield Cause("status.month", f'must be the month of asOf ("{status.as_of}"), got "{status.month}"')
        for month in status.past:
            if not _MONTH.fullmatch(month) or month >= status.month:
                yield Cause("status.past", f'must name months before "{status.month}", got "{month}"')
        paid = sum(lot.rate for lots in status.machines.values() for lot in lots)
        if paid != status.committed_micros:
            yield Cause(
                "status.committedMicros",
                f"must be what the machines add up to ({paid}), got {status.committed_micros}",
            )


def pool_ledger_spec(pool: LatticePool) -> LedgerSpec:
    """A pool's budget is hard. Without one its ledger counts and refuses nothing."""
    account = Account(kind="LatticePool", name=pool.metadata.name)
    budget = pool.spec.budget
    if budget is None:
        return LedgerSpec(budget=account, hard=True)
    return LedgerSpec(
        budget=account, limit_micros=budget.limit_micros, hard=True, alert_millionths=budget.alert_millionths
    )


def cloud_ledger_spec(cloud: CloudInfrastructure, region: str = "") -> LedgerSpec | None:
    """The budget over all regions, or that of one; what a region leaves open is as in the whole. None: there is no such region."""
    account = Account(kind="CloudInfrastructure", name=cloud.metadata.name, region=region)
    whole = cloud.spec.budget or CloudBudget()
    if region and region not in cloud.spec.regions:
        return None
    own = (cloud.spec.regions[region].budget or CloudBudget()) if region else whole
    hard = whole.hard_limit if own.hard_limit is None else own.hard_limit
    alert = whole if own.alert_threshold is None else own
    return LedgerSpec(
        budget=account,
        limit_micros=own.limit_micros,
        hard=bool(hard),
        alert_millionths=alert.alert_millionths,
    )


def overflow_ledger_spec(static: StaticInfrastructure) -> LedgerSpec | None:
    """What overflow may cost, which is hard. None: nothing overflows from there."""
    overflow = static.spec.overflow
    if overflow is None or not overflow.enabled:
        return None
    account = Account(kind="StaticInfrastructure", name=static.metadata.name)
    return LedgerSpec(budget=account, limit_micros=overflow.limits.spend_micros, hard=True)


def ledger_spec(account: Account, owner: Kind | None) -> LedgerSpec | None:
    """What the object says of the account now; None: it is gone, or has no such budget any more."""
    match owner:
        case LatticePool():
            return pool_ledger_spec(owner)
        case CloudInfrastructure():
            return cloud_ledger_spec(owner, account.region)
        case StaticInfrastructure():
            return overflow_ledger_spec(owner)
    return None
