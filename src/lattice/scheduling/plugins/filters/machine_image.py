"""MachineImage: the name of a node's machine image must match a pattern, and the version in the name must reach
a minimum."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np

from lattice.engine.plugin import Reason, Rejections, Scope, Shortfall
from lattice.engine.table import Flags, Rowids, Rows, Table
from lattice.kinds.constraints import MachineImage as ImageRequirement
from lattice.scheduling.plugins.cluster_events import STATIC_NODE_EVENTS, ClusterEvent
from lattice.scheduling.plugins.reasons import shortfalls_by_node_info, single_row
from lattice.scheduling.table.label_match import node_infos_on
from lattice.scheduling.table.workload_ask import WorkloadAsk

_DOTTED_VERSION = re.compile(r"[0-9]+(?:\.[0-9]+)+")
_NUMBER = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class ImageMismatch:
    """The name of the node's machine image does not match the pattern."""

    pattern: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"without a machine image like {self.pattern}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda info: info.image, self._shortfall)

    def _shortfall(self, image: str) -> Shortfall:
        return Shortfall("machine image", self.pattern, image or "unknown", self.pattern)


@dataclass(frozen=True, slots=True)
class ImageTooOld:
    """The version in the name of the node's machine image is lower than required, or the name holds no
    version."""

    version: str
    plugin: ClassVar[str] = "MachineImage"

    def summary(self) -> str:
        return f"with a machine image below version {self.version}"

    def detail(self, table: Table, row: int) -> Shortfall:
        return self.details(table, single_row(row))[0]

    def details(self, table: Table, rows: Rowids) -> Sequence[Shortfall]:
        return shortfalls_by_node_info(table, rows, lambda info: info.image, self._shortfall)

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
        required = cast("ImageRequirement", ask.demands.image)
        rejections: dict[Reason, Flags] = {}
        if required.pattern:

            def mismatches(subset: Rows) -> Flags:
                parts = map(re.escape, required.pattern.split("*"))
                regex = re.compile(".*".join(parts), re.DOTALL)
                return _image_mask(subset, lambda image: regex.fullmatch(image) is None)

            key = (self.name, "like", required.pattern)
            rejections[ImageMismatch(required.pattern)] = rows.derived(key, mismatches)
        if required.min_version:

            def is_too_old(subset: Rows) -> Flags:
                least = version_in(required.min_version)
                return _image_mask(subset, lambda image: not image or version_in(image) < least)

            key = (self.name, "from", required.min_version)
            rejections[ImageTooOld(required.min_version)] = rows.derived(key, is_too_old)
        return rejections


def version_in(image: str) -> tuple[int, ...]:
    """The version in the name of an image: the first dotted number, or else the first number. CML-2.9.1 gives
    (2, 9, 1).

    Trailing zeros are dropped.
    """
    match = _DOTTED_VERSION.search(image) or _NUMBER.search(image)
    parts = [int(part) for part in match.group().split(".")] if match else []
    # So that 2.9 and 2.9.0 are equal.
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def _image_mask(rows: Rows, is_rejected: Callable[[str], bool]) -> Flags:
    return np.array([info is None or is_rejected(info.image) for info in node_infos_on(rows)], np.bool_)
