"""MachineImage: the image that a node was started from must look like this and be at least that version."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.kinds.constraint import MachineImage as Wanted
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_node_info, single_row
from lattice.scheduling.table.ask import WorkloadAsk
from lattice.scheduling.table.label_match import node_infos_on

_DOTTED = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class ImageMismatch:
    """Its name does not fit the pattern."""

    pattern: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"without a machine image like {self.pattern}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda facts: facts.image, self._shortfall)

    def _shortfall(self, image: str) -> Shortfall:
        return Shortfall("machine image", self.pattern, image or "unknown", self.pattern)


@dataclass(frozen=True, slots=True)
class ImageTooOld:
    """Its version is lower, or its name holds none."""

    version: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"with a machine image below version {self.version}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda facts: facts.image, self._shortfall)

    def _shortfall(self, image: str) -> Shortfall:
        version, need = ".".join(map(str, version_in(image))) or "none", f"{self.version} or later"
        return Shortfall("machine image version", need, f"{version} ({image})" if image else "unknown", need)


@dataclass(frozen=True, slots=True)
class MachineImage:
    name: ClassVar[str] = "MachineImage"
    scope: ClassVar[Scope] = "fixed"
    wakes_on: ClassVar[frozenset[ClusterEvent]] = STATIC_NODE_EVENTS

    def applies(self, ask: WorkloadAsk) -> bool:
        return ask.demands.image is not None

    def filter(self, ask: WorkloadAsk, rows: Rows) -> Rejections:
        wanted = cast("Wanted", ask.demands.image)
        found: dict[Reason, Flags] = {}
        if wanted.pattern:
            found[ImageMismatch(wanted.pattern)] = rows.derived(
                (self.name, "like", wanted.pattern), lambda some: _mismatching(some, wanted.pattern)
            )
        if wanted.min_version:
            found[ImageTooOld(wanted.min_version)] = rows.derived(
                (self.name, "from", wanted.min_version), lambda some: _too_old(some, wanted)
            )
        return found


def version_in(image: str) -> tuple[int, ...]:
    """The number in the name of an image, a dotted one if there is one: CML-2.9.1 is (2, 9, 1). Trailing zeros say nothing."""
    found = _DOTTED.search(image) or _NUMBER.search(image)
    parts = [int(part) for part in found.group().split(".")] if found else []
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _mismatching(rows: Rows, pattern: str) -> Flags:
    like = re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
    return _image_mask(rows, lambda image: like.fullmatch(image) is None)


def _too_old(rows: Rows, wanted: Wanted) -> Flags:
    least = version_in(wanted.min_version)
    return _image_mask(rows, lambda image: not image or version_in(image) < least)


def _image_mask(rows: Rows, refused: Callable[[str], bool]) -> Flags:
    return np.array([facts is None or refused(facts.image) for facts in node_infos_on(rows)], np.bool_)
