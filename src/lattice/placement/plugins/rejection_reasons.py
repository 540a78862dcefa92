"""Reasons for the rejection of an offer that several plugins share, and the formats of their amounts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import numpy as np

from lattice.engine.plugin import Shortfall
from lattice.engine.table import Flags, Rows, RowSubset, Table
from lattice.kinds.meta.quantity import approximate_bytes, format_bytes, format_cores
from lattice.placement.model.demand import Demand, Requirement
from lattice.placement.model.fleet import Fleet, FleetTable
from lattice.placement.model.offer import Offer

BYTE_RESOURCES = ("memory", "storage")


def fleet_of(rows: Rows | Table) -> Fleet:
    return cast("FleetTable", rows.table).fleet


def offer_at(table: Table, row: int) -> Offer:
    return fleet_of(table).offers[row]


def select_rows(rows: Rows, mask: Flags) -> Flags:
    """The part of a mask over all offers that concerns the rows."""
    return mask[rows.rows] if isinstance(rows, RowSubset) else mask


def offer_mask(rows: Rows, key: object, predicate: Callable[[Offer], bool]) -> Flags:
    """Mask of the rows whose offer satisfies the predicate, cached by key: offers do not change during
    placement."""
    table = cast("FleetTable", rows.table)
    cached = table.masks.get(key)
    if cached is None:
        cached = table.masks[key] = (
            predicate,
            np.array([predicate(offer) for offer in table.offers], np.bool_),
        )
    return select_rows(rows, cached[1]).copy()


def join_sorted(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "none"


def format_amount(resource: str, amount: int) -> str:
    """Format an amount of a resource: 1500 of cpu is 1500m, 4294967296 of memory is 4Gi."""
    if resource in ("cpu", "gpu"):
        return format_cores(amount)
    if resource in BYTE_RESOURCES:
        exact = format_bytes(amount)
        # An exact byte count over 7 characters is hard to read, so the amount is rounded.
        return exact if len(exact) <= 7 else approximate_bytes(amount)
    return f"{amount:,}"


@dataclass(frozen=True, slots=True)
class MissingProperty:
    """The offer lacks a required compliance standard, capability, label or jurisdiction."""

    plugin: str
    requirement: Requirement

    def summary(self) -> str:
        return (
            f"without {self.requirement.value}"
            if self.requirement.kind == "label"
            else f"without {self.requirement.kind} {self.requirement.value}"
        )

    def detail(self, table: Table, row: int) -> Shortfall:
        required, offer = self.requirement, offer_at(table, row)
        key = required.label.key if required.label else ""
        match required.kind:
            case "compliance":
                have = join_sorted(offer.compliance)
            case "capability":
                have = join_sorted(offer.capabilities)
            case "residency":
                have = join_sorted(offer.residency)
            case _ if key in offer.labels:
                have = f"{key}={join_sorted(offer.labels[key])}"
            case _:
                have = f"no label {key}"
        return Shortfall(required.kind, required.value, have, required.value)


@dataclass(frozen=True, slots=True)
class FixedReason:
    """A reason with the same text for every rejected offer."""

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


def join_shortfall(demand: Demand, offer: Offer) -> Shortfall:
    """What a pool of joined machines lacks: a machine with the free capacity for one replica."""
    amounts = " and ".join(
        f"{format_amount(name, amount)} {name}" for name, amount in demand.effective_needs.items()
    )
    return Shortfall(
        "joined machine",
        f"one with {amounts} free",
        "none",
        f"join a machine with `lattice tokens create --pool {offer.name}`",
    )
