"""Why an offer is ruled out, and the words that reasons share."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Flags, Rows, RowSubset, Table
from lattice.kinds.meta.quantity import approximate_bytes, format_bytes, format_cores
from lattice.placement.model.demand import Requirement
from lattice.placement.model.fleet import Fleet, OfferTable
from lattice.placement.model.offer import Offer

BYTE_RESOURCES = ("memory", "storage")


def fleet_of(rows: Rows | Table) -> Fleet:
    return cast("OfferTable", rows.table).fleet


def offer_at(table: Table, row: int) -> Offer:
    return fleet_of(table).offers[row]


def select_rows(rows: Rows, whole: Flags) -> Flags:
    """The part of a mask over all offers that is about these rows."""
    return whole[rows.rows] if isinstance(rows, RowSubset) else whole


def offer_mask(rows: Rows, key: object, holds: Callable[[Offer], bool]) -> Flags:
    """Where something about an offer itself holds; looked at once, since offers do not change."""
    table = cast("OfferTable", rows.table)
    found = table.masks.get(key)
    if found is None:
        found = table.masks[key] = (holds, np.array([holds(offer) for offer in table.fleet.offers], np.bool_))
    return select_rows(rows, found[1]).copy()


def join_sorted(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


def format_amount(resource: str, amount: int) -> str:
    """1500 of cpu is 1500m, 4294967296 of memory 4Gi."""
    if resource in ("cpu", "gpu"):
        return format_cores(amount)
    if resource in BYTE_RESOURCES:
        exact = format_bytes(amount)
        return exact if len(exact) <= 7 else approximate_bytes(amount)
    return f"{amount:,}"


@dataclass(frozen=True, slots=True)
class MissingProperty:
    """The offer does not have a certificate, capability, label or jurisdiction that is required."""

    plugin: str
    requirement: Requirement

    def summary(self) -> str:
        return (
            f"without {self.requirement.value}"
            if self.requirement.kind == "label"
            else f"without {self.requirement.kind} {self.requirement.value}"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        required = self.requirement
        return Shortfall(
            required.kind, required.value, _offered_value(offer_at(table, row), required), required.value
        )


def _offered_value(offer: Offer, required: Requirement) -> str:
    match required.kind:
        case "compliance":
            return join_sorted(offer.compliance)
        case "capability":
            return join_sorted(offer.capabilities)
        case "residency":
            return join_sorted(offer.residency)
    key = required.label.key if required.label else ""
    return f"{key}={join_sorted(offer.labels[key])}" if key in offer.labels else f"no label {key}"


@dataclass(frozen=True, slots=True)
class FixedReason:
    """A reason that is the same for every offer it rules out."""

    plugin: str
    summary_text: str
    subject: str
    need: str
    have: str
    missing: str

    def summary(self) -> str:
        return self.summary_text

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall(self.subject, self.need, self.have, self.missing)
