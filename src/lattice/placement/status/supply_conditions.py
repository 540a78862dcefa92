"""Compute the conditions of pools, clouds and data centers: readiness, references, overlaps, budget, capacity
and credentials."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import (
    BUDGET_CONDITION,
    CREDENTIALS_CONDITION,
    DEGRADED_CONDITION,
    OVERLAPS_CONDITION,
    PRESSURE_CONDITION,
    CloudInfrastructure,
    StaticInfrastructure,
)
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Condition
from lattice.kinds.meta.conditions import READY_CONDITION, RESOLVED_CONDITION
from lattice.kinds.meta.quantity import MILLIONTHS, format_dollars, round_to_cents
from lattice.kinds.pool import LatticePool
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, Offer
from lattice.placement.model.supply import Finding, cloud_account, pool_account
from lattice.placement.model.world import World
from lattice.placement.status.fleet_status import projected_cost

# An offer is under pressure if this part of a capacity is in use, in millionths.
PRESSURE_MILLIONTHS = 800_000
# The amount in use, and the limit.
ResourceUsage = tuple[int, int]
_KINDS = {LatticePool: "pool", CloudInfrastructure: "cloud", StaticInfrastructure: "static"}
# By provider: alternative sets of keys of the secret; one complete set suffices. For a provider without an
# entry the required keys are unknown, so any key suffices.
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
    """Return the usage of machines, cores, memory and clusters in the offer, as far as they are limited."""
    limits, table = fleet.offers[row].limits, fleet.table
    limit_by_resource = {
        "nodes": limits.nodes,
        "cpu": limits.millicores,
        "memory": limits.memory,
        "clusters": limits.clusters,
    }
    return {
        name: (int(table.allocated(table.resource_index[name])[row]), limit)
        for name, limit in limit_by_resource.items()
        if limit < NO_LIMIT
    }


def highest_offer_usage(fleet: Fleet, row: int) -> ResourceUsage | None:
    """Return the usage of the scarcest of machines, cores and memory, or None if the offer limits none of
    them."""
    return highest_usage(
        use for name, use in offer_usage(fleet, row).items() if name != "clusters" and use[1] > 0
    )


def highest_usage(usages: Iterable[ResourceUsage]) -> ResourceUsage | None:
    """Return the usage with the largest share of its limit, or None without usages."""
    return max(usages, key=lambda usage: usage[0] / usage[1], default=None)


def is_under_pressure(use: ResourceUsage) -> bool:
    """Report whether the usage reaches the pressure threshold."""
    return use[0] * MILLIONTHS >= use[1] * PRESSURE_MILLIONTHS


def supply_conditions(
    supplier: LatticePool | CloudInfrastructure | StaticInfrastructure, fleet: Fleet, world: World
) -> tuple[Condition, ...]:
    """Return all conditions of the supplier that follow from the fleet and the world, without transition
    times."""
    name = supplier.metadata.name
    offers = [offer for offer in fleet.offers if offer.owner == name and offer.kind == _KINDS[type(supplier)]]
    findings = [
        finding for finding in world.findings if finding.subject == f"{supplier.resource.singular}/{name}"
    ]
    conditions = [ready_condition(offers, findings), _resolved(findings), _overlaps(findings)]
    if isinstance(supplier, CloudInfrastructure):
        conditions.append(_degraded_condition(offers))
    if not isinstance(supplier, StaticInfrastructure):
        ledger = (
            pool_account(name) if isinstance(supplier, LatticePool) else cloud_account(name)
        ).ledger_name
        budget = fleet.ledgers.budgets.get(ledger)
        if budget is not None and budget.limit is not None:
            projected = projected_cost(ledger, fleet, world)
            conditions.append(budget_condition(projected, budget.limit, is_hard=budget.is_hard))
    if not isinstance(supplier, CloudInfrastructure):
        row = fleet.table.row_of.get(name) if offers else None
        usage = None if row is None else highest_offer_usage(fleet, row)
        if usage is not None:
            conditions.append(pressure_condition(usage))
    return tuple(conditions)


def _condition(kind: str, holds: bool, reason: str, message: str = "") -> Condition:
    return Condition(type=kind, status="True" if holds else "False", reason=reason, message=message)


def _is_usable(offer: Offer) -> bool:
    return bool(offer.types or offer.is_manual) and not offer.closed_reason


def ready_condition(offers: Sequence[Offer], findings: Sequence[Finding]) -> Condition:
    """Report whether replicas can be placed in at least one offer of the supplier."""
    if any(map(_is_usable, offers)):
        return _condition(READY_CONDITION, True, "Usable")
    closed = next((offer.closed_reason for offer in offers if offer.closed_reason), "")
    finding = next((candidate for candidate in findings if candidate.type == READY_CONDITION), None)
    if finding is not None:
        return _condition(READY_CONDITION, False, finding.reason, finding.message)
    return _condition(READY_CONDITION, False, "Closed", closed or "no regions specified")


def _degraded_condition(offers: Sequence[Offer]) -> Condition:
    """Report whether some regions of the cloud are unusable while other regions are usable."""
    unusable = sorted(offer.place.region for offer in offers if not _is_usable(offer))
    if unusable and len(unusable) < len(offers):
        return _condition(
            DEGRADED_CONDITION, True, "RegionsUnusable", f"no replica can be placed in {', '.join(unusable)}"
        )
    return _condition(DEGRADED_CONDITION, False, "AllRegionsAlike")


def _resolved(findings: Sequence[Finding]) -> Condition:
    unresolved = [finding for finding in findings if finding.type == RESOLVED_CONDITION]
    if not unresolved:
        return _condition(RESOLVED_CONDITION, True, "Resolved")
    return _condition(
        RESOLVED_CONDITION,
        False,
        unresolved[0].reason,
        "; ".join(finding.message for finding in unresolved),
    )


def _overlaps(findings: Sequence[Finding]) -> Condition:
    overlaps = [finding for finding in findings if finding.type == OVERLAPS_CONDITION]
    if not overlaps:
        return _condition(OVERLAPS_CONDITION, False, "Distinct")
    return _condition(
        OVERLAPS_CONDITION, True, overlaps[0].reason, "; ".join(finding.message for finding in overlaps)
    )


def budget_condition(projected: int, limit: int, *, is_hard: bool) -> Condition:
    """Report whether the projected spend reaches the limit, hard or soft. All amounts are micro-dollars."""
    # Rounded to cents: a finer amount would change the message, and cause a write, every second.
    money = f"{format_dollars(round_to_cents(projected))} projected of {format_dollars(limit)}"
    if projected < limit:
        return _condition(BUDGET_CONDITION, False, "WithinBudget", money)
    return _condition(BUDGET_CONDITION, True, "HardLimit" if is_hard else "SoftLimit", money)


def pressure_condition(use: ResourceUsage) -> Condition:
    """Report whether the scarcest resource is under pressure."""
    used, total = use
    # Rounded to the nearest percent.
    available_percent = (max(0, total - used) * 200 + total) // (2 * total)
    reason = "NearlyFull" if is_under_pressure(use) else "RoomLeft"
    return _condition(
        PRESSURE_CONDITION, is_under_pressure(use), reason, f"{available_percent}% capacity available"
    )


class CredentialsSource(NamedTuple):
    """The secret with the credentials for a provider."""

    provider: str
    namespace: str
    secret_name: str


def credentials_source(
    supplier: LatticePool | CloudInfrastructure | StaticInfrastructure,
) -> CredentialsSource | None:
    """Return the secret that the supplier names, or None: a provider such as `local` needs no credentials."""
    if isinstance(supplier, LatticePool):
        credentials = supplier.spec.provider.credentials
        return (
            CredentialsSource(supplier.spec.provider.type, SYSTEM_NAMESPACE, credentials.secret_ref)
            if credentials
            else None
        )
    reference = supplier.spec.credentials_ref
    return (
        CredentialsSource(supplier.spec.provider, reference.namespace, reference.name) if reference else None
    )


def credentials_condition(source: CredentialsSource | None, secret: Secret | None) -> Condition:
    """Report whether the secret exists and has the keys that the provider needs."""
    if source is None:
        return Condition(
            type=CREDENTIALS_CONDITION, status="True", reason="NotNeeded", message="no credentials specified"
        )
    secret_text = f"secret {source.namespace}/{source.secret_name}"
    if secret is None:
        return Condition(
            type=CREDENTIALS_CONDITION,
            status="False",
            reason="SecretNotFound",
            message=f"{secret_text} not found",
        )
    present_keys = {key for key, value in {**secret.data, **secret.string_data}.items() if value}
    key_sets = CREDENTIAL_KEYS.get(source.provider)
    # The required keys of this provider are unknown.
    if key_sets is None and present_keys:
        return Condition(
            type=CREDENTIALS_CONDITION, status="True", reason="SecretFound", message=f"{secret_text} found"
        )
    if key_sets and any(present_keys >= set(keys) for keys in key_sets):
        return Condition(
            type=CREDENTIALS_CONDITION,
            status="True",
            reason="KeysFound",
            message=f"{secret_text} has the keys that {source.provider} needs",
        )
    first = key_sets[0] if key_sets else ("at least one key",)
    missing = [key for key in first if key not in present_keys]
    message = f"{secret_text} lacks {', '.join(missing)} for provider {source.provider}"
    return Condition(type=CREDENTIALS_CONDITION, status="False", reason="KeysMissing", message=message)
