"""Who may call whom, and where: an agreement for each pair of services of which one names the other, active only while both declare it."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from lattice.kinds.agreement import (
    AgreementSpec,
    AgreementStatus,
    Endpoint,
    LatticeAgreement,
    ServiceReference,
)
from lattice.kinds.meta.base import Metadata
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import Dependency, LatticeService
from lattice.kinds.workload import LatticeWorkload

ANY_SERVICE = "*"
_NON_ENV_CHARS = re.compile(r"[^A-Z0-9]+")
DEFAULT_NAMESPACE = "default"
MAX_NAME_CHARS = 253  # characters of a name


class Name(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Pair(NamedTuple):
    caller: Name
    callee: Name

    @property
    def object_name(self) -> str:
        """In the caller's namespace. No two pairs share one: where names could run together, a digest keeps them apart."""
        other = (
            self.callee.name
            if self.callee.namespace == self.caller.namespace
            else f"{self.callee.name}.{self.callee.namespace}"
        )
        plain = f"{self.caller.name}--{other}"
        if (
            "--" not in self.caller.name + self.callee.name
            and "." not in self.caller.name + self.callee.name
            and len(plain) <= MAX_NAME_CHARS
        ):
            return plain
        return f"{plain[: MAX_NAME_CHARS - 13].rstrip('-.')}-{sha256(repr(self).encode()).hexdigest()[:12]}"


def name_of(service: LatticeService) -> Name:
    return Name(service.metadata.namespace or DEFAULT_NAMESPACE, service.metadata.name)


def _named_services(service: LatticeService) -> Iterator[tuple[Name, Dependency]]:
    """What it lists, everybody aside; itself is nobody to agree with."""
    own = name_of(service)
    for key, each in service.spec.resources.items():
        other = Name(each.namespace or own.namespace, each.id or key)
        if key != ANY_SERVICE and each.is_service and other != own:
            yield other, each


def _declares(service: LatticeService | None, other: Name, direction: Callable[[Dependency], bool]) -> bool:
    if service is None:
        return False
    everybody = service.spec.resources.get(ANY_SERVICE)
    if everybody is not None and direction(everybody):
        return True
    return any(name == other and direction(each) for name, each in _named_services(service))


def declared_pairs(service: LatticeService) -> set[Pair]:
    """Those that it names itself."""
    own = name_of(service)
    found = set()
    for other, each in _named_services(service):
        found |= {Pair(own, other)} if each.is_outbound else set()
        found |= {Pair(other, own)} if each.is_inbound else set()
    return found


def agreement_status(pair: Pair, services: Mapping[Name, LatticeService]) -> AgreementStatus:
    """Without addresses: these are for whoever knows where replicas are."""
    calls = _declares(services.get(pair.caller), pair.callee, lambda each: each.is_outbound)
    admits = _declares(services.get(pair.callee), pair.caller, lambda each: each.is_inbound)
    missing = (
        None if calls and admits else "both" if not calls and not admits else "callee" if calls else "caller"
    )
    return AgreementStatus(active=calls and admits, missing=missing)  # type: ignore[arg-type]


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


def pair_of(found: LatticeAgreement) -> Pair:
    spec, here = found.spec, found.metadata.namespace
    return Pair(
        Name(spec.caller.namespace or here, spec.caller.name),
        Name(spec.callee.namespace or here, spec.callee.name),
    )


def endpoints(
    replicas: Iterable[LatticeWorkload], nodes: Callable[[str], LatticeNode | None]
) -> tuple[Endpoint, ...]:
    """Where ready replicas answer, in order of their names."""
    found = []
    for each in sorted(replicas, key=lambda replica: (replica.spec.slot, replica.metadata.name)):
        binding = each.status.binding
        node = nodes(binding.node) if binding and each.status.ready else None
        address = node.status.addresses[0].address if node is not None and node.status.addresses else ""
        if address:
            ports: list[tuple[str, int | None]] = [*sorted(each.status.allocated_ports.items())] or [
                ("", None)
            ]
            found += [
                Endpoint(address=address, port=port, name=name, workload=each.metadata.name)
                for name, port in ports
            ]
    return tuple(found)


def environment(agreements: Sequence[LatticeAgreement]) -> dict[str, str]:
    """What the caller's replicas are told of those that they may call: API_ENDPOINTS=10.0.0.4:31000,10.0.0.5:31000."""
    told: dict[str, str] = {}
    active = [each for each in agreements if each.status.active and each.status.endpoints]
    for each in sorted(active, key=lambda found: (bool(found.spec.callee.namespace), found.metadata.name)):
        word = _variable(each.spec.callee)
        if (
            f"{word}_HOST" in told
        ):  # such as of order-api and order.api: the later gets a name that nobody else has
            word += f"_{sha256(repr(pair_of(each)).encode()).hexdigest()[:6].upper()}"
        first = each.status.endpoints[0]
        told[f"{word}_ENDPOINTS"] = ",".join(_format_endpoint(end) for end in each.status.endpoints)
        told[f"{word}_HOST"] = first.address
        if first.port is not None:
            told[f"{word}_PORT"] = str(first.port)
    return told


def _variable(callee: ServiceReference) -> str:
    """ORDER_API; of another namespace with its name behind: ORDER_API_SHOP."""
    return _NON_ENV_CHARS.sub("_", f"{callee.name} {callee.namespace}".strip().upper())


def _format_endpoint(end: Endpoint) -> str:
    host = f"[{end.address}]" if ":" in end.address else end.address
    return host if end.port is None else f"{host}:{end.port}"
