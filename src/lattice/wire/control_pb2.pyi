from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkloadName(_message.Message):
    __slots__ = ("namespace", "name")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class NodeName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ApplyWorkloadRequest(_message.Message):
    __slots__ = ("manifest", "field_manager", "force", "dry_run")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    FIELD_MANAGER_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    manifest: str
    field_manager: str
    force: bool
    dry_run: bool
    def __init__(self, manifest: _Optional[str] = ..., field_manager: _Optional[str] = ..., force: bool = ..., dry_run: bool = ...) -> None: ...

class ApplyWorkloadReply(_message.Message):
    __slots__ = ("workload", "created")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    workload: Workload
    created: bool
    def __init__(self, workload: _Optional[_Union[Workload, _Mapping]] = ..., created: bool = ...) -> None: ...

class DeleteWorkloadRequest(_message.Message):
    __slots__ = ("namespace", "name", "uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ...) -> None: ...

class DeleteWorkloadReply(_message.Message):
    __slots__ = ("gone",)
    GONE_FIELD_NUMBER: _ClassVar[int]
    gone: bool
    def __init__(self, gone: bool = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("namespace", "label_selector", "field_selector", "limit", "continue_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LABEL_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    FIELD_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    label_selector: str
    field_selector: str
    limit: int
    continue_token: str
    def __init__(self, namespace: _Optional[str] = ..., label_selector: _Optional[str] = ..., field_selector: _Optional[str] = ..., limit: _Optional[int] = ..., continue_token: _Optional[str] = ...) -> None: ...

class Workload(_message.Message):
    __slots__ = ("namespace", "name", "uid", "resource_version", "service", "desired_state", "actual_state", "ready", "node", "revision", "attempts", "failure_reason", "last_action", "json")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SERVICE_FIELD_NUMBER: _ClassVar[int]
    DESIRED_STATE_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_STATE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REASON_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    name: str
    uid: str
    resource_version: str
    service: str
    desired_state: str
    actual_state: str
    ready: bool
    node: str
    revision: str
    attempts: int
    failure_reason: str
    last_action: str
    json: str
    def __init__(self, namespace: _Optional[str] = ..., name: _Optional[str] = ..., uid: _Optional[str] = ..., resource_version: _Optional[str] = ..., service: _Optional[str] = ..., desired_state: _Optional[str] = ..., actual_state: _Optional[str] = ..., ready: bool = ..., node: _Optional[str] = ..., revision: _Optional[str] = ..., attempts: _Optional[int] = ..., failure_reason: _Optional[str] = ..., last_action: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class WorkloadList(_message.Message):
    __slots__ = ("workloads", "resource_version", "continue_token")
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    workloads: _containers.RepeatedCompositeFieldContainer[Workload]
    resource_version: str
    continue_token: str
    def __init__(self, workloads: _Optional[_Iterable[_Union[Workload, _Mapping]]] = ..., resource_version: _Optional[str] = ..., continue_token: _Optional[str] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("name", "uid", "resource_version", "cluster", "pool", "ready", "phase", "unschedulable", "capacity", "allocatable", "workloads", "json")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AllocatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    UNSCHEDULABLE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATABLE_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    uid: str
    resource_version: str
    cluster: str
    pool: str
    ready: bool
    phase: str
    unschedulable: bool
    capacity: _containers.ScalarMap[str, int]
    allocatable: _containers.ScalarMap[str, int]
    workloads: int
    json: str
    def __init__(self, name: _Optional[str] = ..., uid: _Optional[str] = ..., resource_version: _Optional[str] = ..., cluster: _Optional[str] = ..., pool: _Optional[str] = ..., ready: bool = ..., phase: _Optional[str] = ..., unschedulable: bool = ..., capacity: _Optional[_Mapping[str, int]] = ..., allocatable: _Optional[_Mapping[str, int]] = ..., workloads: _Optional[int] = ..., json: _Optional[str] = ...) -> None: ...

class NodeList(_message.Message):
    __slots__ = ("nodes", "resource_version", "continue_token")
    NODES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    resource_version: str
    continue_token: str
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., resource_version: _Optional[str] = ..., continue_token: _Optional[str] = ...) -> None: ...

class ClusterSummaryRequest(_message.Message):
    __slots__ = ("cluster",)
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    def __init__(self, cluster: _Optional[str] = ...) -> None: ...

class ClusterSummary(_message.Message):
    __slots__ = ("cluster", "nodes", "ready_nodes", "draining_nodes", "capacity", "allocatable", "requested", "workloads", "ready_workloads", "unbound_workloads", "workloads_by_state")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AllocatableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RequestedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class WorkloadsByStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    READY_NODES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_NODES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATABLE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    READY_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    UNBOUND_WORKLOADS_FIELD_NUMBER: _ClassVar[int]
    WORKLOADS_BY_STATE_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    nodes: int
    ready_nodes: int
    draining_nodes: int
    capacity: _containers.ScalarMap[str, int]
    allocatable: _containers.ScalarMap[str, int]
    requested: _containers.ScalarMap[str, int]
    workloads: int
    ready_workloads: int
    unbound_workloads: int
    workloads_by_state: _containers.ScalarMap[str, int]
    def __init__(self, cluster: _Optional[str] = ..., nodes: _Optional[int] = ..., ready_nodes: _Optional[int] = ..., draining_nodes: _Optional[int] = ..., capacity: _Optional[_Mapping[str, int]] = ..., allocatable: _Optional[_Mapping[str, int]] = ..., requested: _Optional[_Mapping[str, int]] = ..., workloads: _Optional[int] = ..., ready_workloads: _Optional[int] = ..., unbound_workloads: _Optional[int] = ..., workloads_by_state: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("namespace", "kind", "name", "types", "resource_version", "from_the_beginning")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    FROM_THE_BEGINNING_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    kind: str
    name: str
    types: _containers.RepeatedScalarFieldContainer[str]
    resource_version: str
    from_the_beginning: bool
    def __init__(self, namespace: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., types: _Optional[_Iterable[str]] = ..., resource_version: _Optional[str] = ..., from_the_beginning: bool = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("namespace", "kind", "name", "type", "reason", "message", "at", "resource_version", "json")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_VERSION_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    kind: str
    name: str
    type: str
    reason: str
    message: str
    at: str
    resource_version: str
    json: str
    def __init__(self, namespace: _Optional[str] = ..., kind: _Optional[str] = ..., name: _Optional[str] = ..., type: _Optional[str] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., at: _Optional[str] = ..., resource_version: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...
