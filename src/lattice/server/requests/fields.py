"""Field selectors: which few fields of an object can be selected by, and does it match?"""

from dataclasses import dataclass
from typing import Any

from lattice.errors import Malformed
from lattice.kinds.meta.base import Resource

EVERYWHERE = frozenset({"metadata.name", "metadata.namespace"})
BY_RESOURCE = {
    "events": frozenset(
        f"involvedObject.{part}"
        for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
    )
    | {"reason", "type", "source", "reportingComponent"},
    "secrets": frozenset({"type"}),
    "namespaces": frozenset({"status.phase"}),
    "latticeworkloads.lattice.dev": frozenset({"spec.cluster", "status.binding.node", "status.actualState"}),
    "latticenodes.lattice.dev": frozenset({"spec.cluster", "spec.pool"}),
}


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """(path, value, whether it must be equal or must differ), all of which must hold."""

    demands: tuple[tuple[str, str, bool], ...] = ()

    def refuse_unsupported(self, resource: Resource) -> None:
        known = EVERYWHERE | BY_RESOURCE.get(resource.id, frozenset())
        for path, _, _ in self.demands:
            if path not in known:
                choices = ", ".join(sorted(known))
                raise Malformed(
                    f"field label not supported: {path}",
                    fix=f"select {resource.plural} by one of {choices}, or by label with -l",
                )

    @property
    def name(self) -> str:
        """The one name asked for, if it is one."""
        return next((value for path, value, equal in self.demands if path == "metadata.name" and equal), "")

    def matches(self, obj: dict[str, Any]) -> bool:
        return all((_text(obj, path) == value) is equal for path, value, equal in self.demands)


def _text(obj: dict[str, Any], path: str) -> str:
    found: Any = obj
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if path == "source" and isinstance(found, dict):
        found = found.get("component")
    return "" if found is None else str(found)


def parse_field_selector(text: str) -> FieldSelector:
    """`metadata.name=api,type!=Normal`; `==` is `=`."""
    demands = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        path, sign, value = part.partition("!=")
        if not sign:
            path, sign, value = part.partition("==")
        if not sign:
            path, sign, value = part.partition("=")
        if not sign:
            raise Malformed(
                f'cannot read the field selector "{part}"', fix="write it like metadata.name=api,type!=Normal"
            )
        demands.append((path.strip(), value.strip(), "!=" not in part))
    return FieldSelector(tuple(demands))
