"""The nodes and workloads that changed since the node table was last updated."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class ChangedObjects:
    """Names of changed nodes and paths of changed workloads, in the order of their first change."""

    # Dictionaries as ordered sets.
    nodes: dict[str, None] = field(default_factory=dict)
    workloads: dict[str, None] = field(default_factory=dict)

    def add_workloads(self, paths: Iterable[str]) -> None:
        self.workloads.update(dict.fromkeys(paths))

    def pop_nodes(self) -> list[str]:
        names = list(self.nodes)
        self.nodes.clear()
        return names

    def pop_workloads(self) -> list[str]:
        paths = list(self.workloads)
        self.workloads.clear()
        return paths

    def __bool__(self) -> bool:
        return bool(self.nodes or self.workloads)
