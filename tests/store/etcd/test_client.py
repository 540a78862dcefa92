"""How long one waits for etcd: no answer is an answer, and comes soon enough for whoever writes."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from lattice.errors import Unavailable
from lattice.store.etcd.client import LARGE_REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S, Address, EtcdClient, Member

REFUSED_WITHIN = 2.0  # seconds without a majority
MEMBERS = ("one:1", "two:2", "three:3")


def silence() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())


def asked(ask: Callable[[EtcdClient], Any], endpoints: Sequence[str] = MEMBERS) -> Any:
    async def go() -> Any:
        wire = EtcdClient(Address(tuple(endpoints)))
        try:
            return await ask(wire)
        finally:
            await wire.close()

    return asyncio.run(go())


@pytest.mark.parametrize("endpoints", [MEMBERS[:1], MEMBERS[:2], MEMBERS], ids=len)
def test_a_read_that_nobody_answers_is_over_in_time_and_everybody_was_asked(
    endpoints: tuple[str, ...],
) -> None:
    waited: list[tuple[str, float]] = []

    async def ask(member: Member, seconds: float) -> None:
        waited.append((member.endpoint, seconds))
        raise silence()

    with pytest.raises(Unavailable, match="no answer in time"):
        asked(lambda wire: wire.read(ask), endpoints)
    assert [each for each, _ in waited] == list(endpoints)
    assert sum(seconds for _, seconds in waited) <= REFUSED_WITHIN


def test_a_large_read_has_as_long_from_each_member_as_from_one() -> None:
    async def ask(member: Member, seconds: float) -> float:
        return seconds

    assert (
        asked(lambda wire: wire.read(ask, LARGE_REQUEST_TIMEOUT_S * wire.member_count))
        == LARGE_REQUEST_TIMEOUT_S
    )


def test_a_write_goes_to_one_member_once_and_the_next_to_another() -> None:
    tried: list[str] = []

    async def ask(member: Member) -> None:
        tried.append(member.endpoint)
        raise silence()

    async def twice(wire: EtcdClient) -> None:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await wire.call(ask)

    asked(twice)
    assert tried == ["one:1", "two:2"]
    assert REQUEST_TIMEOUT_S < REFUSED_WITHIN
