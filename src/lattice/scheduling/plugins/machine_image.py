"""MachineImage: the image that a node was started from must look like this and be at least that version."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rows, Table
from lattice.kinds.constraint import MachineImage as Wanted
from lattice.scheduling.ask import WorkloadAsk
from lattice.scheduling.change import NEW_NODES, Change
from lattice.scheduling.nodes import NodeTable
from lattice.scheduling.reason import facts_at

_DOTTED = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class OtherImage:
    """Its name does not fit the pattern."""

    pattern: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"without a machine image like {self.pattern}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return Shortfall("machine image", self.pattern, facts_at(table, row).image or "unknown")


@dataclass(frozen=True, slots=True)
class OldImage:
    """Its version is lower, or its name holds none."""

    version: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"with a machine image below version {self.version}"

    def detail(self, table: Table, row: int) -> Shortfall:
        have = ".".join(map(str, version_in(facts_at(table, row).image)))
        return Shortfall("machine image version", self.version, have or "unknown")


@dataclass(frozen=True, slots=True)
class MachineImage:
    name: ClassVar[str] = "MachineImage"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[Change]] = NEW_NODES

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.image is not None

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        wanted = cast("Wanted", ask.demands.image)
        found: dict[Reason, Flags] = {}
        if wanted.pattern:
            found[OtherImage(wanted.pattern)] = rows.memo((self.name, "like", wanted.pattern), lambda table: _unlike(table, wanted.pattern))
        if wanted.min_version:
            found[OldImage(wanted.min_version)] = rows.memo((self.name, "from", wanted.min_version), lambda table: _older(table, wanted))
        return found


def version_in(image: str) -> tuple[int, ...]:
    """The number in the name of an image, a dotted one if there is one: CML-2.9.1 is (2, 9, 1). Trailing zeros say nothing."""
    found = _DOTTED.search(image) or _NUMBER.search(image)
    parts = [int(part) for part in found.group().split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _unlike(table: Table, pattern: str) -> Flags:
    like = re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
    return _where(table, lambda image: like.fullmatch(image) is None)


def _older(table: Table, wanted: Wanted) -> Flags:
    least = version_in(wanted.min_version)
    return _where(table, lambda image: not image or version_in(image) < least)


def _where(table: Table, refused: Callable[[str], bool]) -> Flags:
    return np.array([facts is None or refused(facts.image) for facts in cast("NodeTable", table).facts], np.bool_)
