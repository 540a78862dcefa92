"""Timeouts of the etcd client: unanswered requests fail soon enough for writers."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest

from lattice.errors import Unavailable
from lattice.store.etcd.client import LARGE_REQUEST_TIMEOUT_S, REQUEST_TIMEOUT_S, Address, EtcdClient, Member

REFUSED_WITHIN = 2.0  # seconds without a majority
MEMBERS = ("one:1", "two:2", "three:3")


def silence() -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(grpc.StatusCode.DEADLINE_EXCEEDED, grpc.aio.Metadata(), grpc.aio.Metadata())


@asynccontextmanager
async def open_client(endpoints: Sequence[str] = MEMBERS) -> AsyncIterator[EtcdClient]:
    client = EtcdClient(Address(tuple(endpoints)))
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.parametrize("endpoints", [MEMBERS[:1], MEMBERS[:2], MEMBERS], ids=len)
async def test_unanswered_read_asks_all_members_within_limit(
    endpoints: tuple[str, ...],
) -> None:
    waited: list[tuple[str, float]] = []

    async def ask(member: Member, seconds: float) -> None:
        waited.append((member.endpoint, seconds))
        raise silence()

    with pytest.raises(Unavailable, match="no response in time"):
        async with open_client(endpoints) as client:
            await client.read(ask)
    assert [endpoint for endpoint, _ in waited] == list(endpoints)
    assert sum(seconds for _, seconds in waited) <= REFUSED_WITHIN


async def test_large_read_keeps_timeout_per_member() -> None:
    async def ask(member: Member, seconds: float) -> float:
        return seconds

    async with open_client() as client:
        seconds = await client.read(ask, LARGE_REQUEST_TIMEOUT_S * client.member_count)
    assert seconds == LARGE_REQUEST_TIMEOUT_S


async def test_write_tries_one_member_and_next_write_another() -> None:
    tried: list[str] = []

    async def ask(member: Member) -> None:
        tried.append(member.endpoint)
        raise silence()

    async with open_client() as client:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await client.call(ask)
    assert tried == ["one:1", "two:2"]
    assert REQUEST_TIMEOUT_S < REFUSED_WITHIN
