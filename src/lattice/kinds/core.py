"""The few kinds of Kubernetes' own that real clients touch: Namespace, Secret, ConfigMap, Event, Lease, and an empty Service list."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import LIST_MAP_BY_TYPE, Column, Condition, Kind, OpaqueJson, Part, Resource
from lattice.kinds.meta.validator import join_path

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class NamespaceSpec(Part):
    """What must be cleaned up before the namespace may go."""

    finalizers: Annotated[tuple[str, ...], Meta(description="Who still has to clean up.")] = ()


class NamespaceStatus(Part):
    """Whether the namespace can be used."""

    phase: Annotated[str, Meta(description="Active, or Terminating while it is being emptied.")] = ""
    conditions: Annotated[
        tuple[Condition, ...], LIST_MAP_BY_TYPE, Meta(description="What holds up its deletion.")
    ] = ()


class Namespace(Kind):
    """A room for names: services of different teams live in different namespaces."""

    resource: ClassVar[Resource] = Resource(
        kind="Namespace",
        plural="namespaces",
        group="",
        version="v1",
        short_names=("ns",),
        categories=(),
        columns=(Column("Status", ".status.phase"),),
    )

    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()


class Secret(Kind):
    """Logins and keys. Values are base64 in `data`; `stringData` takes plain text on the way in."""

    resource: ClassVar[Resource] = Resource(
        kind="Secret",
        plural="secrets",
        group="",
        version="v1",
        categories=(),
        namespaced=True,
        has_status=False,
        columns=(Column("Type", ".type"), Column("Data", "", "integer")),
    )

    data: Annotated[dict[str, str], Meta(description="Values by key, in base64.")] = {}
    string_data: Annotated[
        dict[str, str], Meta(description="Values by key, in plain text; written into data and never shown.")
    ] = {}
    type: Annotated[str, Meta(description="What the secret is for; Opaque if nothing is said.")] = ""
    immutable: Annotated[bool, Meta(description="true: the values can no longer be changed.")] | None = None

    def problems(self) -> Iterator[Cause]:
        yield from _key_problems("data", self.data)
        yield from _key_problems("stringData", self.string_data)
        yield from _base64_problems("data", self.data)


class ConfigMap(Kind):
    """Settings that are no secret."""

    resource: ClassVar[Resource] = Resource(
        kind="ConfigMap",
        plural="configmaps",
        group="",
        version="v1",
        short_names=("cm",),
        categories=(),
        namespaced=True,
        has_status=False,
        columns=(Column("Data", "", "integer"),),
    )

    data: Annotated[dict[str, str], Meta(description="Text by key.")] = {}
    binary_data: Annotated[dict[str, str], Meta(description="Bytes by key, in base64.")] = {}
    immutable: Annotated[bool, Meta(description="true: the values can no longer be changed.")] | None = None

    def problems(self) -> Iterator[Cause]:
        yield from _key_problems("data", self.data)
        yield from _key_problems("binaryData", self.binary_data)
        yield from _base64_problems("binaryData", self.binary_data)
        for key in self.data.keys() & self.binary_data.keys():
            yield Cause(join_path("binaryData", key), "must not be in data as well", "FieldValueDuplicate")


class ObjectReference(Part):
    """Which object is meant."""

    kind: Annotated[str, Meta(description="Its kind.")] = ""
    namespace: Annotated[str, Meta(description="Its namespace.")] = ""
    name: Annotated[str, Meta(description="Its name.")] = ""
    uid: Annotated[str, Meta(description="Its uid.")] = ""
    api_version: Annotated[str, Meta(description="Group and version of its kind.")] = ""
    resource_version: Annotated[str, Meta(description="Its revision at that time.")] = ""
    field_path: Annotated[str, Meta(description="The part of it that is meant.")] = ""


class EventSource(Part):
    """Who reports, in the older form."""

    component: Annotated[str, Meta(description="Program that reports.")] = ""
    host: Annotated[str, Meta(description="Machine that it runs on.")] = ""


class EventSeries(Part):
    """The same thing, happening again and again."""

    count: Annotated[int, Meta(description="How often so far.")] | None = None
    last_observed_time: Annotated[str, Meta(description="When it happened last.")] | None = None


class Event(Kind):
    """Something that happened to an object."""

    resource: ClassVar[Resource] = Resource(
        kind="Event",
        plural="events",
        group="",
        version="v1",
        short_names=("ev",),
        categories=(),
        namespaced=True,
        has_status=False,
        columns=(
            Column("Last Seen", "", "date"),
            Column("Type", ".type"),
            Column("Reason", ".reason"),
            Column("Object", ""),
            Column("Source", ".source.component", priority=1),
            Column("Message", ".message"),
            Column("Count", ".count", "integer", 1),
        ),
    )

    involved_object: Annotated[ObjectReference, Meta(description="What it happened to.")]
    reason: Annotated[str, Meta(description="One word for programs.")] = ""
    message: Annotated[str, Meta(description="One sentence for people.")] = ""
    source: Annotated[EventSource, Meta(description="Who reports, in the older form.")] = EventSource()
    first_timestamp: Annotated[str, Meta(description="When it happened first.")] | None = None
    last_timestamp: Annotated[str, Meta(description="When it happened last.")] | None = None
    count: Annotated[int, Meta(description="How often it happened.")] | None = None
    type: Annotated[str, Meta(description="Normal or Warning.")] = ""
    event_time: Annotated[str, Meta(description="When it happened, to the microsecond.")] | None = None
    series: (
        Annotated[EventSeries, Meta(description="How it went on, if it happens again and again.")] | None
    ) = None
    action: Annotated[str, Meta(description="What was done about it.")] = ""
    related: Annotated[ObjectReference, Meta(description="A second object that it is about.")] | None = None
    reporting_component: Annotated[str, Meta(description="Who reports.")] = ""
    reporting_instance: Annotated[str, Meta(description="Which one of them.")] = ""

    @property
    def last_seen(self) -> str | None:
        repeated = self.series.last_observed_time if self.series else None
        return (
            repeated
            or self.last_timestamp
            or self.event_time
            or self.first_timestamp
            or self.metadata.creation_timestamp
        )


class LeaseSpec(Part):
    """Who holds the lease, and until when."""

    holder_identity: Annotated[str, Meta(description="Who holds it.")] | None = None
    lease_duration_seconds: (
        Annotated[int, Meta(ge=1, description="Others wait this long after the last renewal.")] | None
    ) = None
    acquire_time: Annotated[str, Meta(description="When the holder got it.")] | None = None
    renew_time: Annotated[str, Meta(description="When the holder last renewed it.")] | None = None
    lease_transitions: Annotated[int, Meta(ge=0, description="How often it changed hands.")] | None = None
    strategy: Annotated[str, Meta(description="How the next holder is chosen.")] | None = None
    preferred_holder: Annotated[str, Meta(description="Who should get it next.")] | None = None


class Lease(Kind):
    """A lock with a time limit, for programs that elect a leader."""

    resource: ClassVar[Resource] = Resource(
        kind="Lease",
        plural="leases",
        group="coordination.k8s.io",
        version="v1",
        categories=(),
        namespaced=True,
        has_status=False,
        columns=(Column("Holder", ".spec.holderIdentity"),),
    )

    spec: LeaseSpec = LeaseSpec()


class Service(Kind):
    """Kubernetes' own services. There are none here: the list is always empty, so that `get all` works."""

    resource: ClassVar[Resource] = Resource(
        kind="Service",
        plural="services",
        group="",
        version="v1",
        short_names=("svc",),
        categories=("all",),
        namespaced=True,
        columns=(
            Column("Type", ".spec.type"),
            Column("Cluster-IP", ".spec.clusterIP"),
            Column("Port(s)", ".spec.ports[*].port"),
        ),
        verbs=("get", "list", "watch"),
    )

    spec: Annotated[OpaqueJson, Meta(description="Never filled here.")] = {}
    status: Annotated[OpaqueJson, Meta(description="Never filled here.")] = {}


def _key_problems(path: str, keys: Iterable[str]) -> Iterator[Cause]:
    for key in keys:
        if not _DATA_KEY.fullmatch(key) or key in (".", ".."):
            yield Cause(
                join_path(path, key),
                f'key must be 1 to 253 letters, digits, "-", "_" or ".", got "{key[:70]}"',
            )


def _base64_problems(path: str, values: dict[str, str]) -> Iterator[Cause]:
    for key, value in values.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            yield Cause(
                join_path(path, key),
                "must be base64; put plain text into stringData" if path == "data" else "must be base64",
            )


class CustomResourceDefinition(Kind):
    """How our kinds would be declared to a Kubernetes cluster. Read-only here: this server serves its own kinds and no others."""

    resource: ClassVar[Resource] = Resource(
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        version="v1",
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        has_status=False,
        columns=(Column("Scope", ".spec.scope"), Column("Version", ".spec.versions[*].name", priority=1)),
        verbs=("get", "list", "watch"),
    )

    spec: Annotated[OpaqueJson, Meta(description="Names, scope and versions of the kind.")]
    status: Annotated[OpaqueJson, Meta(description="Always established.")] = {}
