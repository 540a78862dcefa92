"""LatticeAgreement: may this service call that one, and at which addresses?"""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status


class ServiceReference(Part):
    """One of the two services."""

    name: Annotated[str, Meta(min_length=1, description="Name of the LatticeService.")]
    namespace: Annotated[str, Meta(description="Its namespace; the agreement's own if absent.")] = ""


class AgreementSpec(Part):
    """Who calls whom."""

    caller: Annotated[ServiceReference, Meta(description="The service that calls.")]
    callee: Annotated[ServiceReference, Meta(description="The service that is called.")]


class Endpoint(Part):
    """Where one ready replica of the callee answers."""

    address: Annotated[str, Meta(description="Host name or IP address.")]
    port: Annotated[int, Meta(ge=1, le=65535, description="Port number.")] | None = None
    name: Annotated[str, Meta(description="Name of the port.")] = ""
    workload: Annotated[str, Meta(description="LatticeWorkload that answers there.")] = ""


class AgreementStatus(Status):
    """Whether both sides agree, and the addresses if they do."""

    active: (
        Annotated[bool, Meta(description="true when the caller declares outbound and the callee inbound.")]
        | None
    ) = None
    missing: (
        Annotated[
            Literal["caller", "callee", "both"],
            Meta(description="The side that has not declared it; absent when none is missing."),
        ]
        | None
    ) = None
    endpoints: Annotated[
        tuple[Endpoint, ...], Meta(description="Addresses that the caller's workloads are given.")
    ] = ()


class LatticeAgreement(Kind):
    """Whether one service may call another. It is active only while both of them declare it."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeAgreement",
        plural="latticeagreements",
        short_names=("la",),
        namespaced=True,
        managed_hint="agreements follow from services: list each other under spec.resources, outbound in the caller and inbound in the callee",
        columns=(
            Column("Caller", ".spec.caller.name"),
            Column("Callee", ".spec.callee.name"),
            Column("Active", ".status.active", "boolean"),
            Column("Missing", ".status.missing"),
            Column("Endpoints", ".status.endpoints[*].address", priority=1),
        ),
    )

    spec: AgreementSpec
    status: AgreementStatus = AgreementStatus()

    def problems(self) -> Iterator[Cause]:
        if self.spec.caller == self.spec.callee:
            yield Cause(
                "spec.callee",
                f'must be another service than the caller, got "{self.spec.callee.name}" for both',
            )
