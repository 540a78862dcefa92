"""Join tokens are removed an hour after they expire; other secrets of the namespace stay."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from build.agent_world import Leader, a_leader, a_token, store_token
from build.virtual import VirtualClock

from lattice.controllers.garbage.ttl import JoinTokenController
from lattice.controllers.runtime.object_writes import put_new
from lattice.errors import Fenced
from lattice.kinds.core import Secret
from lattice.kinds.join_token import TOKEN_SECRET_TYPE
from lattice.kinds.meta.base import Metadata


@asynccontextmanager
async def leading() -> AsyncIterator[tuple[Leader, VirtualClock]]:
    clock = VirtualClock()
    async with a_leader(clock) as leader:
        yield leader, clock


async def secret_names(leader: Leader) -> list[str]:
    return [entry.key.name for entry in (await leader.store.list("secrets")).entries]


async def a_secret(leader: Leader, name: str, kind: str, namespace: str = "lattice-system") -> None:
    made = Secret(
        api_version="v1", kind="Secret", metadata=Metadata(name=name, namespace=namespace), type=kind
    )
    await leader.store.commit([put_new(made, uid=name, now="2020-01-01T00:00:00Z")])


async def test_expired_tokens_are_removed_and_other_secrets_stay() -> None:
    async with leading() as (leader, clock):
        assert leader.context is not None
        await a_secret(leader, "lattice-ca", "kubernetes.io/tls")
        await a_secret(leader, "damaged", TOKEN_SECRET_TYPE)
        await a_secret(leader, "of-another-namespace", TOKEN_SECRET_TYPE, "default")
        await store_token(leader.store, clock, a_token(number=1), ttl=600)
        loop = asyncio.create_task(JoinTokenController(leader.context).loop().run())
        await clock.advance(1)
        await store_token(leader.store, clock, a_token(number=2), ttl=6000)
        await clock.advance(600)
        assert len(await secret_names(leader)) == 5, "a late agent still gets the reason"
        await clock.advance(3600)
        others = ["damaged", "lattice-ca", "of-another-namespace"]
        assert sorted(await secret_names(leader)) == sorted(["join-000000000002", *others])
        revision = await leader.store.revision()
        await clock.advance(300)
        assert await leader.store.revision() == revision
        await clock.advance(6000)
        assert sorted(await secret_names(leader)) == others
        loop.cancel()


async def test_former_leader_removes_no_token() -> None:
    async with leading() as (leader, clock):
        assert leader.context is not None
        await store_token(leader.store, clock, a_token(), ttl=1)
        await clock.advance(7200)
        assert await leader.store.campaign("controllers", "another", 15.0) is not None
        with pytest.raises(Fenced):
            await JoinTokenController(leader.context).reconcile("lattice-system/join-000000000001")
        assert await secret_names(leader) == ["join-000000000001"]
