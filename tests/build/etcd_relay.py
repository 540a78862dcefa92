"""A relay between one server and etcd: it knows every write that was sent under a term and how etcd answered, can hold such writes up,
and can make the server believe that its term lasts."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc

from lattice.store.etcd import etcd_pb2 as pb

TXN = "/etcdserverpb.KV/Txn"
KEEP_ALIVE = "/etcdserverpb.Lease/LeaseKeepAlive"
WORKERS = 128  # watches and held writes keep one each
PATIENCE = 10.0  # seconds for etcd to answer a write, also when its caller has gone
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.so_reuseport", 0),
]


@dataclass(frozen=True)
class Attempt:
    """A write that was only to happen while a term lasts."""

    term: int
    is_done: bool
    revision: int  # of the store when etcd decided


@dataclass
class Fences:
    """What the relays of one server have in common."""

    attempts: list[Attempt] = field(default_factory=list)
    held: int = 0  # writes that wait here
    believed: int = 0  # a term that the relay keeps alive for the server without asking etcd
    _open: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._open.set()

    def hold(self) -> None:
        self._open.clear()

    def release(self) -> None:
        self._open.set()

    def after(self, revision: int, term: int) -> list[Attempt]:
        """Attempts of that term, or an earlier one, that etcd decided when that revision was there."""
        return [
            attempt
            for attempt in list(self.attempts)
            if attempt.term <= term and attempt.revision >= revision
        ]

    def wait(self) -> None:
        if self._open.is_set():
            return
        with self._lock:
            self.held += 1
        self._open.wait()
        with self._lock:
            self.held -= 1

    def note(self, term: int, answer: Any) -> None:
        with self._lock:
            self.attempts.append(Attempt(term, answer.succeeded, answer.header.revision))


class _Relay(grpc.GenericRpcHandler):
    def __init__(self, endpoint: str, fences: Fences) -> None:
        self._channel = grpc.insecure_channel(endpoint, options=OPTIONS)
        self._fences = fences

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == TXN:
            return grpc.unary_unary_rpc_method_handler(self._txn)
        if details.method == KEEP_ALIVE and self._fences.believed:
            return grpc.stream_stream_rpc_method_handler(_kept_alive)
        metadata = [(key, value) for key, value in details.invocation_metadata if key == "hasleader"]
        forward: Any = self._channel.stream_stream(details.method)
        return grpc.stream_stream_rpc_method_handler(
            lambda asks, context: _passed_on(forward(_until_gone(asks), metadata=metadata), context)
        )

    def _txn(self, raw: bytes, context: Any) -> bytes:
        ask = pb.TxnRequest.FromString(raw)
        term = next(
            (
                int(item.value)
                for item in ask.compare
                if b"/terms/" in item.key and item.target == pb.Compare.VALUE
            ),
            0,
        )
        if self._fences.believed and _asks_for_the_term(ask):
            return _term_is(ask, self._fences.believed)
        if term:
            self._fences.wait()
        try:
            answer: bytes = self._channel.unary_unary(TXN)(raw, timeout=PATIENCE)
        except grpc.RpcError as error:
            raise _told(error, context) from error
        if term:
            self._fences.note(term, pb.TxnResponse.FromString(answer))
        return answer


def _kept_alive(asks: Iterator[bytes], context: Any) -> Iterator[bytes]:
    for raw in _until_gone(asks):
        yield pb.LeaseKeepAliveResponse(
            ID=pb.LeaseKeepAliveRequest.FromString(raw).ID, TTL=3
        ).SerializeToString()


def _asks_for_the_term(ask: Any) -> bool:
    return not ask.compare and len(ask.success) == 1 and b"/terms/" in ask.success[0].request_range.key


def _term_is(ask: Any, term: int) -> bytes:
    result = pb.RangeResponse(kvs=[pb.KeyValue(key=ask.success[0].request_range.key, value=b"%d" % term)])
    answer: bytes = pb.TxnResponse(
        succeeded=True, responses=[pb.ResponseOp(response_range=result)]
    ).SerializeToString()
    return answer


def _until_gone(asks: Iterator[bytes]) -> Iterator[bytes]:
    with contextlib.suppress(grpc.RpcError):
        yield from asks


def _passed_on(call: Any, context: Any) -> Iterator[bytes]:
    context.add_callback(call.cancel)
    try:
        yield from call
    except grpc.RpcError as error:
        raise _told(error, context) from error


def _told(error: Any, context: Any) -> Exception:
    context.abort(error.code(), error.details())
    return AssertionError("unreachable")


@contextlib.contextmanager
def relayed(endpoints: Sequence[str], fences: Fences) -> Iterator[list[str]]:
    """Endpoints to use instead of these, one for one."""
    with contextlib.ExitStack() as stack:
        ports = []
        for endpoint in endpoints:
            server = grpc.server(ThreadPoolExecutor(WORKERS), options=OPTIONS)
            server.add_generic_rpc_handlers((_Relay(endpoint, fences),))
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            server.start()
            stack.callback(lambda server=server: server.stop(None).wait())
        stack.callback(fences.release)
        yield [f"127.0.0.1:{port}" for port in ports]
