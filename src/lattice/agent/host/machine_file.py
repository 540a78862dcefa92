"""The machine file: facts about a machine that no program can detect, as its owner writes them.

```yaml
extended: {example.com/dongle: 2}
licences: [matlab]
machineImage: golden-7
labels: {rack: a3}
```
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.errors import Invalid

_FIELDS = ("extended", "licences", "machineImage", "labels")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Facts about the machine; `extended` holds amounts as written."""

    extended: Mapping[str, str] = field(default_factory=dict)
    licences: tuple[str, ...] = ()
    machine_image: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def machine_facts(document: object, where: str) -> MachineFacts:
    """The facts of a parsed machine file; raises Invalid with the first mistake."""
    content = {} if document is None else document
    if not isinstance(content, dict):
        raise Invalid("must be an object", where=where, fix=f"use the fields {', '.join(_FIELDS)}")
    for name in content:
        if name not in _FIELDS:
            raise Invalid(f"unknown field {name!r}", where=where, fix=f"use {', '.join(_FIELDS)}")
    licences, image = content.get("licences") or [], content.get("machineImage") or ""
    if not isinstance(licences, list) or not all(isinstance(licence, str) for licence in licences):
        raise Invalid("licences must be a list of names", where=where, fix="write licences: [matlab]")
    if not isinstance(image, str):
        raise Invalid("machineImage must be a name", where=where, fix="write machineImage: golden-7")
    return MachineFacts(
        _texts(content, "extended", where), tuple(licences), image, _texts(content, "labels", where)
    )


def _texts(content: Mapping[str, object], name: str, where: str) -> dict[str, str]:
    """The values of an object as text: amounts may be written as numbers."""
    values = content.get(name) or {}
    if not isinstance(values, dict) or any(
        isinstance(value, bool) or not isinstance(value, str | int | float) for value in values.values()
    ):
        raise Invalid(
            f"{name} must map names to values", where=where, fix=f"write {name}: {{example.com/dongle: 2}}"
        )
    return {str(key): str(value) for key, value in values.items()}
