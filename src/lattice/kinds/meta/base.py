"""The base classes of kinds: JSON naming, metadata, conditions, status, and the presentation in the API."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, dataclass_transform

import msgspec
from msgspec import Meta

from lattice.errors import Cause

GROUP = "lattice.dev"
VERSION = "v1alpha1"
# The namespace of objects that state none; it exists even while it holds no object.
DEFAULT_NAMESPACE = "default"
# The namespace of Lattice's own objects: credentials, tokens, leases.
SYSTEM_NAMESPACE = "lattice-system"

OpaqueJson = dict[str, Any]  # JSON whose schema another component defines


# mypy cannot see that subclasses of a frozen Struct are frozen too.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Part(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    # Parts have no reference cycles, so the garbage collector need not track the parts.
    gc=False,
):
    """A piece of a manifest: camelCase in JSON, snake_case in Python, never changed in place."""


class Column(msgspec.Struct, frozen=True):
    """One column of `get`: header, JSONPath into the object, and type; a column with priority 1 is shown with
    -o wide only."""

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    priority: int = 0
    description: str = ""
    # Shown for an object without the field: the value that counts when a user states none.
    default: int | None = None
    # Path of a boolean; while it is true, the cell is empty.
    unless: str = ""
    # Characters after which a text is cut, with "…"; 0: never.
    max_chars: int = 0


class Resource(msgspec.Struct, frozen=True):
    """The presentation of a kind in the API: names, scope, columns and verbs."""

    kind: str
    plural: str
    group: str = GROUP
    version: str = VERSION
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("lattice",)
    namespaced: bool = False
    columns: tuple[Column, ...] = ()
    has_status: bool = True
    scale_path: str = ""  # path of the integer that /scale changes, such as "spec.replicas.min"
    scale_default: int = 0  # the number that counts while the object states none
    # For a managed kind: the object that a user declares instead. Empty for a kind that users write.
    managed_hint: str = ""
    list_hint: str = ""  # a warning with every list, for a kind that has no objects
    verbs: tuple[str, ...] = (
        "create",
        "delete",
        "deletecollection",
        "get",
        "list",
        "patch",
        "update",
        "watch",
    )

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def id(self) -> str:
        """The name of the resource in the store and in messages: `latticepools.lattice.dev`, `namespaces`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class OwnerReference(Part):
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Part):
    """Standard object metadata, with the same meaning as in Kubernetes."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()
    managed_fields: tuple[OpaqueJson, ...] = ()
    self_link: str = ""


class Condition(Part):
    """One aspect of the observed state, in Kubernetes' form."""

    type: Annotated[str, Meta(description="Type of the condition, such as Ready.")]
    status: Annotated[
        Literal["True", "False", "Unknown"],
        Meta(description="Whether the condition is true: True, False or Unknown."),
    ]
    reason: Annotated[str, Meta(description="Reason for the status as one word, for programs.")] = ""
    message: Annotated[str, Meta(description="Description as one sentence, for people.")] = ""
    last_transition_time: Annotated[str, Meta(description="Time when the status last changed.")] | None = None
    observed_generation: (
        Annotated[int, Meta(description="Generation of the object that the condition describes.")] | None
    ) = None


LIST_MAP_BY_TYPE = Meta(
    extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
)
LIST_SET = Meta(extra_json_schema={"x-kubernetes-list-type": "set"})
LIST_MAP_BY_NAME = Meta(
    extra_json_schema={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
)


class Status(Part):
    """The fields that every status has, besides the fields of the kind."""

    phase: Annotated[
        str, Meta(description="Summary as one word, for people; programs read the conditions.")
    ] = ""
    observed_generation: (
        Annotated[int, Meta(description="Generation of the spec that this status describes.")] | None
    ) = None
    conditions: Annotated[
        tuple[Condition, ...], LIST_MAP_BY_TYPE, Meta(description="Conditions of the object, one per type.")
    ] = ()


class Kind(Part):
    """An object of the API. Users write `spec`; only Lattice writes `status`."""

    resource: ClassVar[Resource]

    api_version: str
    kind: str
    metadata: Metadata

    def problems(self) -> Iterator[Cause]:
        """Problems that the schema cannot express: ranges across fields, units, and contradictions within the
        object."""
        yield from ()


def path_of(obj: Kind) -> str:
    """The path of an object, `namespace/name`, or `/name` for a cluster-scoped object: the key of caches and
    controllers."""
    return f"{obj.metadata.namespace}/{obj.metadata.name}"
