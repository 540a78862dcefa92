"""What should be said about a pool, a cloud or a data center: is it usable, known, paid for and not too full?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.meta.base import Condition
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.ledger_math import format_dollars
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, Offer
from lattice.placement.model.supply import DEFAULT_SECRET_NAMESPACE, Finding, cloud_account, pool_account
from lattice.placement.model.world import World
from lattice.placement.status.service_status import projected_cost

PRESSURE_MILLIONTHS = 800_000  # millionths in use from which a place is under pressure
ResourceUsage = tuple[int, int]  # in use, of how much


CENT_MICROS = 10_000  # micro-dollars
_KINDS = {LatticePool: "pool", CloudInfrastructure: "cloud", StaticInfrastructure: "static"}
# Any of these sets of keys will do; a provider that is not named here says nothing about its keys, so that one is enough.
CREDENTIAL_KEYS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "aws": (
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("aws_access_key_id", "aws_secret_access_key"),
        ("roleArn",),
    ),
    "gcp": (("service-account.json",), ("key.json",), ("GOOGLE_APPLICATION_CREDENTIALS",)),
    "azure": (
        ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"),
        ("clientId", "clientSecret", "tenantId"),
    ),
    "proxmox": (("token", "secret", "url"), ("PROXMOX_TOKEN", "PROXMOX_SECRET", "PROXMOX_URL")),
    "vsphere": (("username", "password"),),
    "openstack": (("clouds.yaml",), ("username", "password")),
}


def offer_usage(fleet: Fleet, row: int) -> dict[str, ResourceUsage]:
    """Machines, cores, memory and clusters, as far as they are limited."""
    limits, table = fleet.offers[row].limits, fleet.table
    stated = {
        "nodes": limits.nodes,
        "cpu": limits.milli,
        "memory": limits.memory,
        "clusters": limits.clusters,
    }
    return {
        name: (int(table.allocated(table.resource_index[name])[row]), limit)
        for name, limit in stated.items()
        if limit < NO_LIMIT
    }


def highest_offer_usage(fleet: Fleet, row: int) -> ResourceUsage | None:
    """Of machines, cores and memory; None: none of them is limited."""
    return highest_usage(
        use for name, use in offer_usage(fleet, row).items() if name != "clusters" and use[1] > 0
    )


def highest_usage(found: Iterable[ResourceUsage]) -> ResourceUsage | None:
    return max(found, key=lambda each: each[0] / each[1], default=None)


def is_under_pressure(use: ResourceUsage) -> bool:
    return use[0] * 1_000_000 >= use[1] * PRESSURE_MILLIONTHS


def supply_conditions(
    supplier: LatticePool | CloudInfrastructure | StaticInfrastructure, fleet: Fleet, world: World
) -> tuple[Condition, ...]:
    """One of each type that can be told from what is known here; when they changed is not."""
    name = supplier.metadata.name
    offers = [offer for offer in fleet.offers if offer.owner == name and offer.kind == _KINDS[type(supplier)]]
    said = [each for each in world.findings if each.subject == f"{supplier.resource.singular}/{name}"]
    found = [ready_condition(offers, said), _resolved(said), _overlaps(said)]
    if isinstance(supplier, CloudInfrastructure):
        found.append(degraded_condition(offers))
    if not isinstance(supplier, StaticInfrastructure):
        ledger = (
            pool_account(name) if isinstance(supplier, LatticePool) else cloud_account(name)
        ).ledger_name
        found.extend(_exceeded(ledger, fleet, world))
    if not isinstance(supplier, CloudInfrastructure):
        found.extend(_pressed(name, fleet) if offers else ())
    return tuple(found)


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status="True" if holds else "False", reason=reason, message=message)


def _is_usable(offer: Offer) -> bool:
    return bool(offer.types) and not offer.closed_reason


def ready_condition(offers: Sequence[Offer], said: Sequence[Finding]) -> Condition:
    """Something can be placed there, in one region at least."""
    if any(map(_is_usable, offers)):
        return _condition("Ready", True, "Usable")
    closed = next((offer.closed_reason for offer in offers if offer.closed_reason), "")
    told = next((each for each in said if each.type == "Ready"), None)
    if told is not None:
        return _condition("Ready", False, told.reason, told.message)
    return _condition("Ready", False, "Closed", closed or "it has no regions")


def degraded_condition(offers: Sequence[Offer]) -> Condition:
    """Some of its regions are of no use, others are."""
    unusable = sorted(offer.place.region for offer in offers if not _is_usable(offer))
    if unusable and len(unusable) < len(offers):
        return _condition(
            "Degraded", True, "RegionsUnusable", f"nothing can be placed in {', '.join(unusable)}"
        )
    return _condition("Degraded", False, "AllRegionsAlike")


def _resolved(said: Sequence[Finding]) -> Condition:
    found = [each for each in said if each.type == "ReferencesResolved"]
    if not found:
        return _condition("ReferencesResolved", True, "Resolved")
    return _condition("ReferencesResolved", False, found[0].reason, "; ".join(each.message for each in found))


def _overlaps(said: Sequence[Finding]) -> Condition:
    found = [each for each in said if each.type == "Overlaps"]
    if not found:
        return _condition("Overlaps", False, "Distinct")
    return _condition("Overlaps", True, found[0].reason, "; ".join(each.message for each in found))


def _exceeded(ledger: str, fleet: Fleet, world: World) -> Iterator[Condition]:
    budget = fleet.budgets.get(ledger)
    if budget is not None and budget.limit is not None:
        yield budget_condition(projected_cost(ledger, fleet, world), budget.limit, is_hard=budget.is_hard)


def budget_condition(projected: int, limit: int, *, is_hard: bool) -> Condition:
    """From 100 percent on, whether that stops anything or not. Micro-dollars."""
    cents = (
        (projected + CENT_MICROS // 2) // CENT_MICROS * CENT_MICROS
    )  # finer words would be other words every second, and each of them would be written
    money = f"{format_dollars(cents)} projected of {format_dollars(limit)}"
    if projected < limit:
        return _condition("BudgetExceeded", False, "WithinBudget", money)
    return _condition("BudgetExceeded", True, "HardLimit" if is_hard else "SoftLimit", money)


def _pressed(offer: str, fleet: Fleet) -> Iterator[Condition]:
    row = fleet.table.row_of.get(offer)
    use = None if row is None else highest_offer_usage(fleet, row)
    if use is not None:
        yield pressure_condition(use)


def pressure_condition(use: ResourceUsage) -> Condition:
    """Of what is scarcest."""
    used, whole = use
    left = (max(0, whole - used) * 200 + whole) // (2 * whole)  # to the nearest percent
    reason = "NearlyFull" if is_under_pressure(use) else "RoomLeft"
    return _condition("CapacityPressure", is_under_pressure(use), reason, f"{left}% capacity available")


class CredentialsSource(NamedTuple):
    provider: str
    namespace: str
    secret_name: str


def credentials_source(
    supplier: LatticePool | CloudInfrastructure | StaticInfrastructure,
) -> CredentialsSource | None:
    """None when it names none: a provider such as `local` needs none."""
    if isinstance(supplier, LatticePool):
        stated = supplier.spec.provider.credentials
        return (
            CredentialsSource(supplier.spec.provider.type, DEFAULT_SECRET_NAMESPACE, stated.secret_ref)
            if stated
            else None
        )
    named = supplier.spec.credentials_ref
    return CredentialsSource(supplier.spec.provider, named.namespace, named.name) if named else None


def credentials_condition(login: CredentialsSource | None, secret: Secret | None) -> Condition:
    if login is None:
        return Condition(
            type="CredentialsValid", status="True", reason="NotNeeded", message="it names no credentials"
        )
    where = f"secret {login.namespace}/{login.secret_name}"
    if secret is None:
        return Condition(
            type="CredentialsValid", status="False", reason="SecretNotFound", message=f"there is no {where}"
        )
    have = {key for key, value in {**secret.data, **secret.string_data}.items() if value}
    sets = CREDENTIAL_KEYS.get(login.provider)
    if sets is None and have:
        return Condition(
            type="CredentialsValid", status="True", reason="SecretFound", message=f"{where} is there"
        )
    if sets and any(have >= set(keys) for keys in sets):
        return Condition(
            type="CredentialsValid",
            status="True",
            reason="KeysFound",
            message=f"{where} has the keys that {login.provider} needs",
        )
    first = sets[0] if sets else ("one at least",)
    missing = [key for key in first if key not in have]
    message = f"{where} lacks {', '.join(missing)} for provider {login.provider}"
    return Condition(type="CredentialsValid", status="False", reason="KeysMissing", message=message)
