"""Compute the conditions of pools, clouds and data centers: readiness, references, overlaps, budget, capacity
and credentials."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from lattice.kinds.core import Secret
from lattice.kinds.infrastructure import (
    CREDENTIALS_CONDITION,
    DEGRADED_CONDITION,
    OVERLAPS_CONDITION,
    PRESSURE_CONDITION,
    CloudInfrastructure,
    StaticInfrastructure,
)
from lattice.kinds.meta.base import SYSTEM_NAMESPACE, Condition
from lattice.kinds.meta.conditions import READY_CONDITION, RESOLVED_CONDITION, is_true
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.bill import Bill
from lattice.placement.inputs.ledger_math import HYSTERESIS_MILLIONTHS
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import NO_LIMIT, Offer
from lattice.placement.model.supply import Finding
from lattice.placement.model.world import World
from lattice.placement.status.budget_conditions import BudgetOwner, budget_conditions, budget_verdicts

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


def supply_conditions(supplier: BudgetOwner, fleet: Fleet, world: World, bill: Bill) -> tuple[Condition, ...]:
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
    conditions += budget_conditions(supplier, budget_verdicts(supplier, world, bill))
    if not isinstance(supplier, CloudInfrastructure):
        row = fleet.table.row_of.get(name) if offers else None
        usage = None if row is None else highest_offer_usage(fleet, row)
        if usage is not None:
            was_pressed = is_true(supplier.status.conditions, PRESSURE_CONDITION)
            conditions.append(pressure_condition(usage, was_pressed=was_pressed))
        elif is_true(supplier.status.conditions, PRESSURE_CONDITION):
            conditions.append(_condition(PRESSURE_CONDITION, False, "NoLimit", "no capacity limit"))
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


def pressure_condition(use: ResourceUsage, *, was_pressed: bool = False) -> Condition:
    """Report whether the scarcest resource is under pressure. Pressure ends HYSTERESIS_MILLIONTHS below the
    threshold, so that rounding cannot make it flap."""
    used, total = use
    is_pressed = is_under_pressure(use) or (
        was_pressed and used * MILLIONTHS > total * (PRESSURE_MILLIONTHS - HYSTERESIS_MILLIONTHS)
    )
    # Rounded to the nearest percent.
    available_percent = (max(0, total - used) * 200 + total) // (2 * total)
    reason = "NearlyFull" if is_pressed else "RoomLeft"
    return _condition(PRESSURE_CONDITION, is_pressed, reason, f"{available_percent}% capacity available")


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
