"""Kubernetes kinds that common clients use: Namespace, Secret, ConfigMap, Event, Lease, and an always empty
list of Services."""

import base64
import binascii
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from lattice.errors import Cause
from lattice.kinds.meta.base import (
    DEFAULT_NAMESPACE,
    LIST_MAP_BY_TYPE,
    SYSTEM_NAMESPACE,
    Column,
    Condition,
    Kind,
    OpaqueJson,
    Part,
    Resource,
)
from lattice.kinds.meta.validator import join_path

_DATA_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")


class NamespaceSpec(Part):
    """Finalizers of the namespace."""

    finalizers: Annotated[
        tuple[str, ...], Meta(description="Controllers that must clean up before the namespace is deleted.")
    ] = ()


class NamespaceStatus(Part):
    """Whether the namespace is active or being deleted."""

    phase: Annotated[
        str, Meta(description="Active, or Terminating while the objects of the namespace are deleted.")
    ] = ""
    conditions: Annotated[
        tuple[Condition, ...],
        LIST_MAP_BY_TYPE,
        Meta(description="Conditions about the objects that delay the deletion."),
    ] = ()


class Namespace(Kind):
    """A scope for names: the services of different teams can use different namespaces."""

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
    """Credentials and keys. Values are base64 in `data`; `stringData` accepts plain text in requests."""

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
        dict[str, str],
        Meta(
            description=(
                "Values by key, in plain text; the server stores them in data and never returns them here."
            )
        ),
    ] = {}
    type: Annotated[str, Meta(description="Purpose of the secret; Opaque by default.")] = ""
    immutable: Annotated[bool, Meta(description="true: the values can no longer be changed.")] | None = None

    def problems(self) -> Iterator[Cause]:
        yield from _key_problems("data", self.data)
        yield from _key_problems("stringData", self.string_data)
        yield from _base64_problems("data", self.data)
        yield from _secret_type_problems(self)
        yield from _size_problems("data", (*self.data.values(),), (*self.string_data.values(),))


class ConfigMap(Kind):
    """Configuration values that are not secret."""

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
        yield from _size_problems("data", (*self.binary_data.values(),), (*self.data.values(),))
        for key in self.data.keys() & self.binary_data.keys():
            yield Cause(join_path("binaryData", key), "must not be in data as well", "FieldValueDuplicate")


class ObjectReference(Part):
    """A reference to an object."""

    kind: Annotated[str, Meta(description="Kind of the object.")] = ""
    namespace: Annotated[str, Meta(description="Namespace of the object.")] = ""
    name: Annotated[str, Meta(description="Name of the object.")] = ""
    uid: Annotated[str, Meta(description="uid of the object.")] = ""
    api_version: Annotated[str, Meta(description="Group and version of the kind.")] = ""
    resource_version: Annotated[str, Meta(description="Revision of the object at the time of the event.")] = (
        ""
    )
    field_path: Annotated[str, Meta(description="Part of the object that the event is about.")] = ""


class EventSource(Part):
    """The component that reports the event, as older clients state it; newer clients set
    `reportingComponent`."""

    component: Annotated[str, Meta(description="Program that reports the event.")] = ""
    host: Annotated[str, Meta(description="Machine that the program runs on.")] = ""


class EventSeries(Part):
    """Repetitions of the same event."""

    count: Annotated[int, Meta(description="Number of occurrences so far.")] | None = None
    last_observed_time: Annotated[str, Meta(description="Time of the last occurrence.")] | None = None


class Event(Kind):
    """A record of something that happened to an object."""

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

    involved_object: Annotated[ObjectReference, Meta(description="Object that the event is about.")]
    reason: Annotated[str, Meta(description="Reason as one word, for programs.")] = ""
    message: Annotated[str, Meta(description="Description of the event, for people.")] = ""
    source: Annotated[
        EventSource,
        Meta(
            description=(
                "Component that reports the event, as older clients state it; newer clients set "
                "reportingComponent."
            )
        ),
    ] = EventSource()
    first_timestamp: Annotated[str, Meta(description="Time of the first occurrence.")] | None = None
    last_timestamp: Annotated[str, Meta(description="Time of the last occurrence.")] | None = None
    count: Annotated[int, Meta(description="Number of occurrences.")] | None = None
    type: Annotated[str, Meta(description="Normal or Warning.")] = ""
    event_time: Annotated[str, Meta(description="Time of the event, to the microsecond.")] | None = None
    series: Annotated[EventSeries, Meta(description="Repetitions of the event, if there are any.")] | None = (
        None
    )
    action: Annotated[str, Meta(description="Action that the component took.")] = ""
    related: Annotated[ObjectReference, Meta(description="Second object that the event is about.")] | None = (
        None
    )
    reporting_component: Annotated[str, Meta(description="Component that reports the event.")] = ""
    reporting_instance: Annotated[str, Meta(description="Instance of the component.")] = ""

    def problems(self) -> Iterator[Cause]:
        yield from event_namespace_problems("involvedObject", self.involved_object, self.metadata.namespace)

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


def event_namespace_problems(path: str, reference: ObjectReference, namespace: str) -> Iterator[Cause]:
    """An event is in the namespace of its object; an event about a cluster-scoped object is in `default` or in a
    namespace of the system."""
    expected = (namespace,) if reference.namespace else (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE, "kube-system")
    if namespace and (reference.namespace or namespace) not in expected:
        yield Cause(
            f"{path}.namespace",
            f'Invalid value: "{reference.namespace}": does not match event.namespace "{namespace}"',
        )


class LeaseSpec(Part):
    """The holder of the lease, and the time of expiry."""

    holder_identity: Annotated[str, Meta(description="Identity of the holder.")] | None = None
    lease_duration_seconds: (
        Annotated[
            int,
            Meta(
                ge=1,
                description="Seconds after the last renewal before another candidate may take the lease.",
            ),
        ]
        | None
    ) = None
    acquire_time: Annotated[str, Meta(description="Time when the holder took the lease.")] | None = None
    renew_time: Annotated[str, Meta(description="Time when the holder last renewed the lease.")] | None = None
    lease_transitions: Annotated[int, Meta(ge=0, description="Number of changes of the holder.")] | None = (
        None
    )
    strategy: Annotated[str, Meta(description="How the next holder is chosen.")] | None = None
    preferred_holder: (
        Annotated[str, Meta(description="Candidate that should hold the lease next.")] | None
    ) = None


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
    """Services of Kubernetes. Lattice has none: the list is always empty, so that `kubectl cluster-info` works.
    Use LatticeService instead."""

    resource: ClassVar[Resource] = Resource(
        kind="Service",
        plural="services",
        group="",
        version="v1",
        short_names=("svc",),
        # Not in `all`: `kubectl get all` lists LatticeServices, and needs no hint about Services.
        categories=(),
        namespaced=True,
        columns=(
            Column("Type", ".spec.type"),
            Column("Cluster-IP", ".spec.clusterIP"),
            Column("Port(s)", ".spec.ports[*].port"),
        ),
        list_hint=(
            "Lattice has no Services of Kubernetes: `kubectl get latticeservices` (short: lsvc) lists what runs"
        ),
        verbs=("get", "list", "watch"),
    )

    spec: Annotated[OpaqueJson, Meta(description="Always empty.")] = {}
    status: Annotated[OpaqueJson, Meta(description="Always empty.")] = {}


def _key_problems(path: str, keys: Iterable[str]) -> Iterator[Cause]:
    for key in keys:
        if not _DATA_KEY.fullmatch(key) or key in (".", ".."):
            yield Cause(
                join_path(path, key),
                f'key must be 1 to 253 letters, digits, "-", "_" or ".", got "{key[:70]}"',
            )


# The keys that a secret of a type must have; at least one key of every group.
_KEYS_BY_SECRET_TYPE: dict[str, tuple[tuple[str, ...], ...]] = {
    "kubernetes.io/tls": (("tls.crt",), ("tls.key",)),
    "kubernetes.io/dockercfg": ((".dockercfg",),),
    "kubernetes.io/dockerconfigjson": ((".dockerconfigjson",),),
    "kubernetes.io/basic-auth": (("username", "password"),),
    "kubernetes.io/ssh-auth": (("ssh-privatekey",),),
}
_JSON_SECRET_KEYS = (".dockercfg", ".dockerconfigjson")
MAX_DATA_BYTES = 1 << 20


def _secret_type_problems(secret: Secret) -> Iterator[Cause]:
    """A secret of a type that programs read has the keys of the type, as in Kubernetes."""
    for choices in _KEYS_BY_SECRET_TYPE.get(secret.type, ()):
        stated = [key for key in choices if key in secret.data or key in secret.string_data]
        if not stated:
            alternatives = f", or {' or '.join(choices[1:])}" if choices[1:] else ""
            yield Cause(
                join_path("data", choices[0]),
                f"Required value: a secret of type {secret.type} has the key {choices[0]}{alternatives}",
                "FieldValueRequired",
            )
        for key in stated:
            if key in _JSON_SECRET_KEYS and not _is_json_object(secret, key):
                # The message never repeats the value.
                yield Cause(join_path("data", key), "Invalid value: must be a JSON object")


def _is_json_object(secret: Secret, key: str) -> bool:
    try:
        text = secret.string_data.get(key, "").encode() or base64.b64decode(secret.data[key])
        msgspec.json.decode(text, type=dict)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return False
    return True


def _size_problems(path: str, encoded: Iterable[str], plain: Iterable[str]) -> Iterator[Cause]:
    size = sum(len(value) * 3 // 4 for value in encoded) + sum(len(value.encode()) for value in plain)
    if size > MAX_DATA_BYTES:
        yield Cause(path, f"Too long: may not be more than {MAX_DATA_BYTES} bytes", "FieldValueTooLong")


def _base64_problems(path: str, values: dict[str, str]) -> Iterator[Cause]:
    for key, value in values.items():
        try:
            base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            yield Cause(
                join_path(path, key),
                "must be base64; use stringData for plain text" if path == "data" else "must be base64",
            )


class CustomResourceDefinition(Kind):
    """A Lattice kind in the form in which a Kubernetes cluster would declare it. Read-only: this server
    serves its own kinds and no others."""

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
