"""The same world under other names."""

from collections.abc import Mapping, Sequence

import msgspec

from lattice.kinds.meta.base import Kind
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.service_affinity import ServiceAffinity

Names = Mapping[str, str]


def renamed(objects: Sequence[Kind], services: Names, pools: Names, classes: Names) -> list[Kind]:
    """Rename services, pools and classes, with every reference to them; an absent name stays. Sorted by the new names, as a
    list of stored objects is."""
    results: list[Kind] = []
    for item in objects:
        match item:
            case LatticeService():
                spec = msgspec.structs.replace(
                    item.spec,
                    resources={services.get(name, name): link for name, link in item.spec.resources.items()},
                    affinity=_renamed_affinity(item.spec.affinity, services),
                    placement=msgspec.structs.replace(
                        item.spec.placement,
                        latency={
                            services.get(name, name): limit
                            for name, limit in item.spec.placement.latency.items()
                        },
                    ),
                )
                results.append(_with_name(item, services, spec))
            case LatticePool():
                node_classes = tuple(classes.get(name, name) for name in item.spec.node_classes)
                results.append(
                    _with_name(item, pools, msgspec.structs.replace(item.spec, node_classes=node_classes))
                )
            case LatticeNodeClass():
                results.append(_with_name(item, classes, item.spec))
            case _:
                results.append(item)
    return sorted(results, key=lambda item: (item.resource.kind, item.metadata.namespace, item.metadata.name))


def _renamed_affinity(affinity: ServiceAffinity | None, services: Names) -> ServiceAffinity | None:
    if affinity is None:
        return None
    text = msgspec.to_builtins(affinity)
    for terms in text.values():
        for term in [*terms.get("required", ()), *(entry["term"] for entry in terms.get("preferred", ()))]:
            if "service" in term:
                term["service"] = services.get(term["service"], term["service"])
    return msgspec.convert(text, ServiceAffinity)


def _with_name(item: Kind, names: Names, spec: object) -> Kind:
    metadata = msgspec.structs.replace(item.metadata, name=names.get(item.metadata.name, item.metadata.name))
    return msgspec.structs.replace(item, metadata=metadata, spec=spec)


def permutation(names: Sequence[str], order: Sequence[str]) -> dict[str, str]:
    return dict(zip(sorted(names), order, strict=True))
