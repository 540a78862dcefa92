"""The /log subresource of a workload: the log from the node, or the last reported lines if the node does not
answer."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from lattice.errors import LatticeError, Malformed, NotFound, Unavailable
from lattice.kinds.meta.base import path_of
from lattice.kinds.workload import LatticeWorkload
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.agents.leader_proxy import ForwardedRequest, LeaderProxy
from lattice.server.agents.node_logs import LogRequest, NodeLogReader
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.options import truthy
from lattice.server.resources.api import Api
from lattice.server.resources.verbs import get_existing, method_not_allowed

TEXT_MEDIA_TYPE = "text/plain; charset=utf-8"
# A node returns at most this many lines at once.
MAX_LOG_LINES = 10_000
LOG_ANSWER_TIMEOUT_S = 5.0
# Time in which the node may report that a followed log does not exist.
FOLLOW_START_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class WorkloadLogs:
    """Reads workload logs. Only the leader has agent sessions; a follower forwards the request to the
    leader."""

    leader_context: Callable[[], LeaderContext | None]
    logs: NodeLogReader
    leader_proxy: LeaderProxy

    async def read(self, api: Api, call: Call) -> Reply:
        if call.method != "GET":
            raise method_not_allowed(call)
        entry = await get_existing(api, call)
        workload = msgspec.json.decode(entry.value, type=LatticeWorkload)
        # A follower rejects a missing workload and malformed options itself.
        request = log_request(workload, call)
        if self.leader_context() is None:
            return await self.leader_proxy.forward(ForwardedRequest(call.user, log_path(call), call.query))
        if not request.node:
            return _last_reported_log(workload, NotFound("the workload is not bound to a node"))
        # The log as a stream; the last reported lines if the node has no log or does not answer in time.
        pieces = self.logs.read(request)
        # An empty string stands for the end of the log.
        first = asyncio.ensure_future(anext(pieces, ""))
        try:
            await asyncio.wait(
                {first}, timeout=FOLLOW_START_TIMEOUT_S if request.follow else LOG_ANSWER_TIMEOUT_S
            )
            # A followed log may be empty for long, so only the first moment can show an error.
            if not first.done() and not request.follow:
                raise Unavailable(f"node {request.node} does not respond")
            if first.done():
                first.result()
        except (NotFound, Unavailable) as error:
            # The cancelled reader tells the agent to stop sending.
            first.cancel()
            await asyncio.wait({first})
            return _last_reported_log(workload, error)
        return Reply(_stream_log(first, pieces), content_type=TEXT_MEDIA_TYPE, is_idle_stream=True)


async def _stream_log(first: "asyncio.Future[str]", pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    try:
        yield (await first).encode()
        async for piece in pieces:
            yield piece.encode()
    finally:
        first.cancel()
        await asyncio.wait({first})
        await pieces.aclose()  # type: ignore[attr-defined]


def _last_reported_log(workload: LatticeWorkload, error: LatticeError) -> Reply:
    """The lines of the last workload report, with a warning; the error itself if the workload has no reported
    lines."""
    reported_log = workload.status.last_log
    if not reported_log:
        where = f"workload/{path_of(workload)}"
        raise type(error)(
            f"no log available: {error.message}",
            where=where,
            fix=error.fix or "`lattice describe` shows the state of the workload",
        ) from error
    note = f"{error.message}: showing the last lines that the node reported"
    return Reply(f"{reported_log.rstrip(chr(10))}\n".encode(), content_type=TEXT_MEDIA_TYPE, warnings=(note,))


def log_request(workload: LatticeWorkload, call: Call) -> LogRequest:
    """The log request of a call: `tail`, `follow` and `container`; kubectl's `tailLines` is accepted, too."""
    query, binding = call.query, workload.status.binding
    container, names = query.get("container", ""), sorted(workload.spec.containers)
    fix = f"choose one of {', '.join(names)}"
    if container and container not in names:
        raise Malformed(f"there is no container {container!r}", where="container", fix=fix)
    if not container and len(names) > 1:
        raise Malformed("the workload has more than one container", where="container", fix=fix)
    tail, tail_lines = query.get("tail") or query.get("tailLines") or "-1", MAX_LOG_LINES
    if tail != "-1":
        if not (tail.isascii() and tail.isdigit()):
            raise Malformed(
                f"must be a whole number of lines, got {tail!r}", where="tail", fix="omit tail for all lines"
            )
        # Nine digits exceed the limit anyway; longer texts need no conversion.
        tail_lines = min(int(tail[:9]), MAX_LOG_LINES)
    return LogRequest(
        node=binding.node if binding else "",
        workload=path_of(workload),
        uid=workload.metadata.uid,
        container=container or (names[0] if names else ""),
        tail_lines=tail_lines,
        follow=truthy(query.get("follow")),
    )


def log_path(call: Call) -> str:
    target, resource = call.target, call.target.served.resource
    parts = [
        "apis",
        resource.group,
        resource.version,
        "namespaces",
        target.namespace,
        resource.plural,
        target.name,
    ]
    return "/" + "/".join([*parts, target.subresource])
