"""An API over a store in memory, and calls as a user makes them."""

import itertools
from typing import Any

import msgspec

from lattice.app.bootstrap import bootstrap
from lattice.clock import Clock
from lattice.kinds import KINDS
from lattice.server.access.authorization import ADMIN_GROUP, SYSTEM_GROUP, VIEWER_GROUP
from lattice.server.requests.call import Call, Reply, Target, User
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.api import Api
from lattice.server.resources.dispatch import handle_call
from lattice.server.resources.routes import request_attributes
from lattice.store.protocol import Store

CATALOG = Catalog(KINDS)
ADMIN = User("ada", frozenset({ADMIN_GROUP}))
VIEWER = User("vic", frozenset({VIEWER_GROUP}))
SERVER = User("lattice-server", frozenset({SYSTEM_GROUP}))


async def an_api(store: Store, clock: Clock) -> Api:
    uids = itertools.count(1)
    api = Api(store, CATALOG, clock, lambda: f"{next(uids):08x}-0000-4000-8000-000000000000", lambda: "bcdfg")
    await bootstrap(api)
    return api


def about(name: str, part: str = "", namespace: str = "default") -> Target:
    return Target(CATALOG.by_id("latticeworkloads.lattice.dev"), namespace, name, part)


async def asked(api: Api, method: str, target: Target, user: User = ADMIN, **query: str) -> Reply:
    call = Call(method, target, user, query)
    return await handle_call(api, call, request_attributes(method, target, watching=False))


def value(reply: Reply) -> Any:
    assert isinstance(reply.body, bytes)
    return msgspec.json.decode(reply.body)


async def text(reply: Reply) -> str:
    if isinstance(reply.body, bytes):
        return reply.body.decode()
    return b"".join([piece async for piece in reply.body]).decode()
