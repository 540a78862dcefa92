from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FromAgent(_message.Message):
    __slots__ = ("hello", "beat", "log")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: Beat
    log: LogPiece
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., log: _Optional[_Union[LogPiece, _Mapping]] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "elsewhere", "refusal", "orders", "heard", "log")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    HEARD_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    elsewhere: Elsewhere
    refusal: Refusal
    orders: Orders
    heard: Heard
    log: LogAsk
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., elsewhere: _Optional[_Union[Elsewhere, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., heard: _Optional[_Union[Heard, _Mapping]] = ..., log: _Optional[_Union[LogAsk, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "version", "term", "registration")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REGISTRATION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    term: int
    registration: Registration
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., term: _Optional[int] = ..., registration: _Optional[_Union[Registration, _Mapping]] = ...) -> None: ...

class Registration(_message.Message):
    __slots__ = ("capacity", "reserved", "gpus", "addresses", "runtimes", "first_port", "last_port", "labels", "licences", "machine_image")
    class CapacityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class ReservedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    RESERVED_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    RUNTIMES_FIELD_NUMBER: _ClassVar[int]
    FIRST_PORT_FIELD_NUMBER: _ClassVar[int]
    LAST_PORT_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LICENCES_FIELD_NUMBER: _ClassVar[int]
    MACHINE_IMAGE_FIELD_NUMBER: _ClassVar[int]
    capacity: _containers.ScalarMap[str, int]
    reserved: _containers.ScalarMap[str, int]
    gpus: _containers.RepeatedCompositeFieldContainer[Gpu]
    addresses: _containers.RepeatedCompositeFieldContainer[Address]
    runtimes: _containers.RepeatedScalarFieldContainer[str]
    first_port: int
    last_port: int
    labels: _containers.ScalarMap[str, str]
    licences: _containers.RepeatedScalarFieldContainer[str]
    machine_image: str
    def __init__(self, capacity: _Optional[_Mapping[str, int]] = ..., reserved: _Optional[_Mapping[str, int]] = ..., gpus: _Optional[_Iterable[_Union[Gpu, _Mapping]]] = ..., addresses: _Optional[_Iterable[_Union[Address, _Mapping]]] = ..., runtimes: _Optional[_Iterable[str]] = ..., first_port: _Optional[int] = ..., last_port: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., licences: _Optional[_Iterable[str]] = ..., machine_image: _Optional[str] = ...) -> None: ...

class Gpu(_message.Message):
    __slots__ = ("model", "milli_free")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MILLI_FREE_FIELD_NUMBER: _ClassVar[int]
    model: str
    milli_free: int
    def __init__(self, model: _Optional[str] = ..., milli_free: _Optional[int] = ...) -> None: ...

class Address(_message.Message):
    __slots__ = ("type", "address")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    type: str
    address: str
    def __init__(self, type: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("cpu", "memory", "disk")
    CPU_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    cpu: int
    memory: int
    disk: int
    def __init__(self, cpu: _Optional[int] = ..., memory: _Optional[int] = ..., disk: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("number", "order", "is_whole", "reports", "gone", "usage", "workload_usage", "leaving")
    class WorkloadUsageEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Usage
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_USAGE_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    number: int
    order: int
    is_whole: bool
    reports: _containers.RepeatedCompositeFieldContainer[Report]
    gone: _containers.RepeatedScalarFieldContainer[str]
    usage: Usage
    workload_usage: _containers.MessageMap[str, Usage]
    leaving: bool
    def __init__(self, number: _Optional[int] = ..., order: _Optional[int] = ..., is_whole: bool = ..., reports: _Optional[_Iterable[_Union[Report, _Mapping]]] = ..., gone: _Optional[_Iterable[str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., workload_usage: _Optional[_Mapping[str, Usage]] = ..., leaving: bool = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("workload", "uid", "state", "revision", "run", "ready", "failure", "log", "how", "exit_code")
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    HOW_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    workload: str
    uid: str
    state: str
    revision: str
    run: int
    ready: bool
    failure: str
    log: str
    how: str
    exit_code: int
    def __init__(self, workload: _Optional[str] = ..., uid: _Optional[str] = ..., state: _Optional[str] = ..., revision: _Optional[str] = ..., run: _Optional[int] = ..., ready: bool = ..., failure: _Optional[str] = ..., log: _Optional[str] = ..., how: _Optional[str] = ..., exit_code: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "version", "term", "heartbeat", "node")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    version: str
    term: int
    heartbeat: float
    node: str
    def __init__(self, protocol: _Optional[int] = ..., version: _Optional[str] = ..., term: _Optional[int] = ..., heartbeat: _Optional[float] = ..., node: _Optional[str] = ...) -> None: ...

class Elsewhere(_message.Message):
    __slots__ = ("address",)
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    address: str
    def __init__(self, address: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    message: str
    def __init__(self, reason: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("term", "number", "is_whole", "assignments", "dropped")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_WHOLE_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    term: int
    number: int
    is_whole: bool
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    dropped: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, term: _Optional[int] = ..., number: _Optional[int] = ..., is_whole: bool = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., dropped: _Optional[_Iterable[str]] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("workload", "uid", "state", "revision", "run", "containers", "env", "ports", "cpu_limit", "memory_limit", "disconnect", "stop_after_ms", "gpus", "gpu_milli", "restart", "qos", "cpu_request", "memory_request")
    class EnvEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class PortsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    CONTAINERS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    PORTS_FIELD_NUMBER: _ClassVar[int]
    CPU_LIMIT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_FIELD_NUMBER: _ClassVar[int]
    STOP_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    QOS_FIELD_NUMBER: _ClassVar[int]
    CPU_REQUEST_FIELD_NUMBER: _ClassVar[int]
    MEMORY_REQUEST_FIELD_NUMBER: _ClassVar[int]
    workload: str
    uid: str
    state: str
    revision: str
    run: int
    containers: bytes
    env: _containers.ScalarMap[str, str]
    ports: _containers.ScalarMap[str, int]
    cpu_limit: int
    memory_limit: int
    disconnect: str
    stop_after_ms: int
    gpus: _containers.RepeatedScalarFieldContainer[int]
    gpu_milli: int
    restart: str
    qos: str
    cpu_request: int
    memory_request: int
    def __init__(self, workload: _Optional[str] = ..., uid: _Optional[str] = ..., state: _Optional[str] = ..., revision: _Optional[str] = ..., run: _Optional[int] = ..., containers: _Optional[bytes] = ..., env: _Optional[_Mapping[str, str]] = ..., ports: _Optional[_Mapping[str, int]] = ..., cpu_limit: _Optional[int] = ..., memory_limit: _Optional[int] = ..., disconnect: _Optional[str] = ..., stop_after_ms: _Optional[int] = ..., gpus: _Optional[_Iterable[int]] = ..., gpu_milli: _Optional[int] = ..., restart: _Optional[str] = ..., qos: _Optional[str] = ..., cpu_request: _Optional[int] = ..., memory_request: _Optional[int] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("beat",)
    BEAT_FIELD_NUMBER: _ClassVar[int]
    beat: int
    def __init__(self, beat: _Optional[int] = ...) -> None: ...

class LogAsk(_message.Message):
    __slots__ = ("id", "workload", "uid", "container", "tail", "follow", "end")
    ID_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    id: int
    workload: str
    uid: str
    container: str
    tail: int
    follow: bool
    end: bool
    def __init__(self, id: _Optional[int] = ..., workload: _Optional[str] = ..., uid: _Optional[str] = ..., container: _Optional[str] = ..., tail: _Optional[int] = ..., follow: bool = ..., end: bool = ...) -> None: ...

class LogPiece(_message.Message):
    __slots__ = ("id", "text", "end", "problem")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    id: int
    text: str
    end: bool
    problem: str
    def __init__(self, id: _Optional[int] = ..., text: _Optional[str] = ..., end: bool = ..., problem: _Optional[str] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("signing_request",)
    SIGNING_REQUEST_FIELD_NUMBER: _ClassVar[int]
    signing_request: bytes
    def __init__(self, signing_request: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("certificate",)
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    certificate: bytes
    def __init__(self, certificate: _Optional[bytes] = ...) -> None: ...
