"""Which parts of an object can be asked for by themselves, and how?"""

from lattice.kinds.meta.base import Resource

BELOW: dict[str, dict[str, tuple[str, ...]]] = {  # besides status and scale: resource -> part -> verbs
    "latticeworkloads.lattice.dev": {"log": ("get",), "retry": ("create",)},
}


def parts_of(resource: Resource) -> dict[str, tuple[str, ...]]:
    return BELOW.get(resource.id, {})


def has_part(resource: Resource, part: str) -> bool:
    return (
        (part == "status" and resource.has_status)
        or (part == "scale" and bool(resource.scale))
        or part in parts_of(resource)
    )
