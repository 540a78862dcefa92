"""The /log part of a workload: what it printed, asked of its node; if the node does not answer, the last lines that it told of."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import msgspec

from lattice.errors import LatticeError, Malformed, NotFound, Unavailable
from lattice.kinds.workload import LatticeWorkload
from lattice.server.agents.leader_context import LeaderContext
from lattice.server.agents.leader_proxy import ForwardedRequest, LeaderProxy
from lattice.server.agents.node_logs import LogRequest, NodeLogReader
from lattice.server.requests.call import Call, Reply
from lattice.server.requests.options import truthy
from lattice.server.resources.api import Api
from lattice.server.resources.verbs import get_existing, method_not_allowed

TEXT = "text/plain; charset=utf-8"
MAX_LOG_LINES = 10_000  # a node gives no more at once
LOG_ANSWER_TIMEOUT_S = 5.0  # seconds
FOLLOW_START_TIMEOUT_S = 0.5  # seconds in which a log that is followed may turn out not to be there


@dataclass(frozen=True)
class WorkloadLogs:
    """Only the leader talks with nodes; other servers pass the question on to it."""

    leader_context: Callable[[], LeaderContext | None]
    logs: NodeLogReader
    leader_proxy: LeaderProxy

    async def read(self, api: Api, call: Call) -> Reply:
        if call.method != "GET":
            raise method_not_allowed(call)
        entry = await get_existing(api, call)
        workload = msgspec.json.decode(entry.value, type=LatticeWorkload)
        asked = log_request(workload, call)
        if self.leader_context() is None:
            return await self.leader_proxy.forward(ForwardedRequest(call.user, log_path(call), call.query))
        if not asked.node:
            return _last_reported_log(workload, NotFound("it is on no node"))
        return await self._read_from_node(workload, asked)

    async def _read_from_node(self, workload: LatticeWorkload, asked: LogRequest) -> Reply:
        pieces = self.logs.read(asked)
        first = asyncio.ensure_future(_next(pieces))
        try:
            await asyncio.wait(
                {first}, timeout=FOLLOW_START_TIMEOUT_S if asked.follow else LOG_ANSWER_TIMEOUT_S
            )
            if not first.done() and not asked.follow:
                raise Unavailable(f"node {asked.node} does not answer")
            if first.done():
                first.result()
        except (NotFound, Unavailable) as error:
            first.cancel()
            await asyncio.wait({first})
            return _last_reported_log(workload, error)
        return Reply(_stream_log(first, pieces), content_type=TEXT, is_idle_stream=True)


async def _next(pieces: AsyncIterator[str]) -> str:
    """Empty if there is none."""
    return await anext(pieces, "")


async def _stream_log(first: "asyncio.Future[str]", pieces: AsyncIterator[str]) -> AsyncIterator[bytes]:
    try:
        yield (await first).encode()
        async for piece in pieces:
            yield piece.encode()
    finally:
        first.cancel()
        await asyncio.wait({first})
        await pieces.aclose()  # type: ignore[attr-defined]


def _last_reported_log(workload: LatticeWorkload, why: LatticeError) -> Reply:
    """What its node told of before, with a word that it is that; the error, if there is nothing."""
    last = workload.status.last_log
    if not last:
        where = f"workload/{workload.metadata.namespace}/{workload.metadata.name}"
        raise type(why)(
            f"nothing to show: {why.message}",
            where=where,
            fix=why.fix or "`lattice describe` tells how it is",
        ) from why
    note = f"{why.message}: these are the last lines that were heard of it"
    return Reply(f"{last.rstrip(chr(10))}\n".encode(), content_type=TEXT, warnings=(note,))


def log_request(workload: LatticeWorkload, call: Call) -> LogRequest:
    """`tail`, `follow` and `container`; kubectl's tailLines is understood, too."""
    query, binding = call.query, workload.status.binding
    return LogRequest(
        node=binding.node if binding else "",
        workload=f"{workload.metadata.namespace}/{workload.metadata.name}",
        uid=workload.metadata.uid,
        container=_container(workload, query.get("container", "")),
        tail_lines=_tail(query.get("tail") or query.get("tailLines") or ""),
        follow=truthy(query.get("follow")),
    )


def _tail(text: str) -> int:
    if not text or text == "-1":
        return MAX_LOG_LINES
    if not (text.isascii() and text.isdigit()):
        raise Malformed(
            f"must be a whole number of lines, got {text!r}", where="tail", fix="leave it out for everything"
        )
    return min(int(text[:9]), MAX_LOG_LINES)


def _container(workload: LatticeWorkload, name: str) -> str:
    names = sorted(workload.spec.containers)
    listed = ", ".join(names)
    if name and name not in names:
        raise Malformed(f"there is no container {name!r}", where="container", fix=f"choose one of {listed}")
    if not name and len(names) > 1:
        raise Malformed("it has more than one container", where="container", fix=f"choose one of {listed}")
    return name or (names[0] if names else "")


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
