"""Agreements between a caller and a callee service.

A service declares the services that it calls and the services that may call it. An agreement exists for every
pair that at least one of the two services declares by name, and is active only while both services declare
the pair.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Literal, NamedTuple

from lattice.kinds.agreement import (
    AgreementSpec,
    AgreementStatus,
    Endpoint,
    LatticeAgreement,
    ServiceReference,
)
from lattice.kinds.meta.base import DEFAULT_NAMESPACE, Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import Dependency, LatticeService
from lattice.kinds.workload import LatticeWorkload

ANY_SERVICE = "*"
_NON_ENV_CHARS = re.compile(r"[^A-Z0-9]+")
MAX_NAME_CHARS = 253


class Name(NamedTuple):
    """Namespace and name of a service."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pair(NamedTuple):
    """Caller and callee of one agreement."""

    caller: Name
    callee: Name

    @property
    def object_name(self) -> str:
        """The name of the agreement object, which lives in the caller's namespace.

        Names of different pairs differ: where joined service names could be ambiguous or too long, a digest
        of the pair follows.
        """
        callee = (
            self.callee.name
            if self.callee.namespace == self.caller.namespace
            else f"{self.callee.name}.{self.callee.namespace}"
        )
        joined = f"{self.caller.name}--{callee}"
        if (
            "--" not in self.caller.name + self.callee.name
            and "." not in self.caller.name + self.callee.name
            and len(joined) <= MAX_NAME_CHARS
        ):
            return joined
        # A hyphen and 12 hexadecimal digits follow the shortened name. The digest covers the class names Pair
        # and Name, which `repr` contains: renaming a class would rename stored agreements.
        return f"{joined[: MAX_NAME_CHARS - 13].rstrip('-.')}-{sha256(repr(self).encode()).hexdigest()[:12]}"


def name_of(service: LatticeService) -> Name:
    return Name(service.metadata.namespace or DEFAULT_NAMESPACE, service.metadata.name)


def _named_services(service: LatticeService) -> Iterator[tuple[Name, Dependency]]:
    """Yield the services that the service lists by name, without the wildcard and without the service
    itself."""
    own = name_of(service)
    for key, dependency in service.spec.resources.items():
        peer = Name(dependency.namespace or own.namespace, dependency.id or key)
        if key != ANY_SERVICE and dependency.is_service and peer != own:
            yield peer, dependency


def _declares(service: LatticeService | None, peer: Name, direction: Callable[[Dependency], bool]) -> bool:
    """Whether the service declares the peer in the direction, by name or by the wildcard."""
    if service is None:
        return False
    wildcard = service.spec.resources.get(ANY_SERVICE)
    if wildcard is not None and direction(wildcard):
        return True
    return any(name == peer and direction(dependency) for name, dependency in _named_services(service))


def declared_pairs(service: LatticeService) -> set[Pair]:
    """Return the pairs of services that the service declares by name."""
    own = name_of(service)
    pairs = set()
    for peer, dependency in _named_services(service):
        if dependency.is_outbound:
            pairs.add(Pair(own, peer))
        if dependency.is_inbound:
            pairs.add(Pair(peer, own))
    return pairs


def agreement_status(pair: Pair, services: Mapping[Name, LatticeService]) -> AgreementStatus:
    """Return whether the pair is active, and which side has not declared the pair.

    The status has no endpoints: the agreements controller adds them from the replicas of the callee.
    """
    calls = _declares(services.get(pair.caller), pair.callee, lambda dependency: dependency.is_outbound)
    admits = _declares(services.get(pair.callee), pair.caller, lambda dependency: dependency.is_inbound)
    missing: Literal["caller", "callee", "both"] | None = None
    if not calls and not admits:
        missing = "both"
    elif not admits:
        missing = "callee"
    elif not calls:
        missing = "caller"
    return AgreementStatus(active=calls and admits, missing=missing)


def build_agreement(pair: Pair, status: AgreementStatus) -> LatticeAgreement:
    resource = LatticeAgreement.resource
    callee = ServiceReference(
        name=pair.callee.name,
        namespace="" if pair.callee.namespace == pair.caller.namespace else pair.callee.namespace,
    )
    return LatticeAgreement(
        api_version=resource.api_version,
        kind=resource.kind,
        metadata=Metadata(name=pair.object_name, namespace=pair.caller.namespace),
        spec=AgreementSpec(caller=ServiceReference(name=pair.caller.name), callee=callee),
        status=status,
    )


def pair_of(agreement: LatticeAgreement) -> Pair:
    """Return the caller and the callee of the agreement; a missing namespace means the namespace of the
    agreement."""
    spec, namespace = agreement.spec, agreement.metadata.namespace
    return Pair(
        Name(spec.caller.namespace or namespace, spec.caller.name),
        Name(spec.callee.namespace or namespace, spec.callee.name),
    )


def endpoints(
    replicas: Iterable[LatticeWorkload], nodes: Callable[[str], LatticeNode | None]
) -> tuple[Endpoint, ...]:
    """Return the addresses and ports of ready replicas, ordered by slot and name."""
    addresses = []
    for replica in sorted(replicas, key=lambda replica: (replica.spec.slot, replica.metadata.name)):
        binding = replica.status.binding
        node = nodes(binding.node) if binding and replica.status.ready else None
        address = node.status.addresses[0].address if node is not None and node.status.addresses else ""
        if not address:
            continue
        # A replica without ports still gets one endpoint, with its address alone.
        ports: list[tuple[str, int | None]] = [*sorted(replica.status.allocated_ports.items())] or [
            ("", None)
        ]
        for name, port in ports:
            addresses.append(Endpoint(address=address, port=port, name=name, workload=replica.metadata.name))
    return tuple(addresses)


def environment(agreements: Sequence[LatticeAgreement]) -> dict[str, str]:
    """Return the environment variables of the caller's replicas, such as
    API_ENDPOINTS=10.0.0.4:31000,10.0.0.5:31000.

    Only active agreements with endpoints contribute variables; callees of the caller's own namespace come
    first.
    """
    variables: dict[str, str] = {}
    active = [agreement for agreement in agreements if agreement.status.active and agreement.status.endpoints]
    for agreement in sorted(active, key=lambda item: (bool(item.spec.callee.namespace), item.metadata.name)):
        callee = agreement.spec.callee
        # ORDER_API for a callee of the caller's namespace, ORDER_API_SHOP for a callee of namespace shop.
        prefix = _NON_ENV_CHARS.sub("_", f"{callee.name} {callee.namespace}".strip().upper())
        # The callees order-api and order.api share a prefix: the later callee gets a digest behind its
        # prefix.
        if f"{prefix}_HOST" in variables:
            prefix += f"_{sha256(repr(pair_of(agreement)).encode()).hexdigest()[:6].upper()}"
        first = agreement.status.endpoints[0]
        endpoints = []
        for endpoint in agreement.status.endpoints:
            # An IPv6 address stands in brackets.
            host = f"[{endpoint.address}]" if ":" in endpoint.address else endpoint.address
            endpoints.append(host if endpoint.port is None else f"{host}:{endpoint.port}")
        variables[f"{prefix}_ENDPOINTS"] = ",".join(endpoints)
        variables[f"{prefix}_HOST"] = first.address
        if first.port is not None:
            variables[f"{prefix}_PORT"] = str(first.port)
    return variables
