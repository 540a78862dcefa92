"""LatticeAgreement: whether one service may call another service, and the addresses of the callee."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import Column, Kind, Part, Resource, Status


class ServiceReference(Part):
    """A reference to a LatticeService."""

    name: Annotated[str, Meta(min_length=1, description="Name of the LatticeService.")]
    namespace: Annotated[
        str, Meta(description="Namespace of the service; the namespace of the agreement if absent.")
    ] = ""


class AgreementSpec(Part):
    """The calling service and the called service."""

    caller: Annotated[ServiceReference, Meta(description="The service that calls.")]
    callee: Annotated[ServiceReference, Meta(description="The service that is called.")]


class Endpoint(Part):
    """The address of one ready replica of the callee."""

    address: Annotated[str, Meta(description="Host name or IP address.")]
    port: Annotated[int, Meta(ge=1, le=65535, description="Port number.")] | None = None
    name: Annotated[str, Meta(description="Name of the port.")] = ""
    workload: Annotated[str, Meta(description="LatticeWorkload that answers at this address.")] = ""


class AgreementStatus(Status):
    """Whether both services declare the call, and the addresses of the callee if both do."""

    active: (
        Annotated[
            bool,
            Meta(description="true when the caller declares the call as outbound and the callee as inbound."),
        ]
        | None
    ) = None
    missing: (
        Annotated[
            Literal["caller", "callee", "both"],
            Meta(description="The side that has not declared the call; absent when both sides have."),
        ]
        | None
    ) = None
    endpoints: Annotated[
        tuple[Endpoint, ...], Meta(description="Addresses of the callee that the caller's workloads receive.")
    ] = ()


class LatticeAgreement(Kind):
    """Permission for one service to call another. The agreement is active only while both services declare
    the call."""

    resource: ClassVar[Resource] = Resource(
        kind="LatticeAgreement",
        plural="latticeagreements",
        short_names=("la",),
        namespaced=True,
        managed_hint=(
            "Lattice creates agreements for services: list both services under spec.resources of "
            "each other, outbound in the caller and inbound in the callee"
        ),
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
                f'must differ from the caller, got "{self.spec.callee.name}" for both',
            )
