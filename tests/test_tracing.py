"""Spans of requests, reconciles, scheduling, commits, assignments and starts; none without an exporter."""

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request
from build import agent_world
from build.apis import ADMIN, VIEWER, about, an_api, asked
from build.objects import a_node, a_workload
from build.scheduling_world import a_virtual_world, running_scheduler
from build.virtual import VirtualClock, settle
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from lattice.clock import SystemClock
from lattice.controllers.runtime.loop import Loop, Requeue
from lattice.errors import NotFound, Unavailable
from lattice.server.access.authentication import TokenAuthenticator
from lattice.server.app import App
from lattice.server.discovery.documents import DiscoveryDocuments
from lattice.store.memory import MemoryStore
from lattice.tracing import NOOP_SPAN, TRACING

SDK = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
"""


@pytest.fixture
def exporter() -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    TRACING.enable(provider)
    yield exporter
    TRACING.disable()


def span_attributes(exporter: InMemorySpanExporter, name: str = "") -> list[dict[str, Any]]:
    """The attributes of the spans of that name, without their prefix."""
    found: tuple[ReadableSpan, ...] = exporter.get_finished_spans()
    return [
        {key.removeprefix("lattice."): value for key, value in (each.attributes or {}).items()}
        for each in found
        if name in ("", each.name)
    ]


async def test_request_span_has_verb_resource_and_status(exporter: InMemorySpanExporter) -> None:
    clock = SystemClock()
    store = MemoryStore(clock)
    api = await an_api(store, clock)
    app = App(api, TokenAuthenticator(store, clock), DiscoveryDocuments(api.catalog, lambda: ""), dict)
    assert (await app.handle(make_mocked_request("GET", "/healthz"))).status == 200
    assert (await app.handle(make_mocked_request("GET", "/api/v1/secrets"))).status == 401
    await asked(api, "GET", about("", namespace="default"), VIEWER)
    with pytest.raises(NotFound):
        await asked(api, "GET", about("web"), ADMIN)
    assert span_attributes(exporter, "request") == [
        {"method": "GET"}
    ]  # a health request has no other attributes
    assert span_attributes(exporter, "get") == [
        {"method": "GET", "verb": "get", "resource": "", "status": 401}
    ]
    workloads = "latticeworkloads.lattice.dev"
    assert span_attributes(exporter, f"list {workloads}") == [
        {"verb": "list", "resource": workloads, "status": 200}
    ]
    assert span_attributes(exporter, f"get {workloads}") == [
        {"verb": "get", "resource": workloads, "status": 404}
    ]


async def test_reconcile_span_has_controller_key_and_result(exporter: InMemorySpanExporter) -> None:
    class Controller:
        name = "test"

        async def reconcile(self, key: str) -> Requeue | None:
            if key == "b":
                raise Unavailable("not now")
            return None

    clock = VirtualClock()
    running = asyncio.create_task(Loop(Controller(), clock, random.Random(7), lambda: ["a", "b"]).run())
    await clock.advance(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    looks = {each["key"]: each for each in span_attributes(exporter, "look")}
    assert looks["a"] == {"controller": "test", "key": "a", "result": "done"}
    assert looks["b"]["result"] == "failed"


async def test_bind_span_is_the_parent_of_its_commit(
    exporter: InMemorySpanExporter,
) -> None:
    async with a_virtual_world() as (world, clock):
        await world.add(a_node("n1"), a_workload("w"))
        async with running_scheduler(world.store, clock) as one:
            await one.run_cycle()
    assert span_attributes(exporter, "schedule")[0] == {"term": 1, "workloads": ("default/w",), "placed": 1}
    assert span_attributes(exporter, "bind")[0] == {"term": 1, "workloads": ("default/w",)}
    spans = exporter.get_finished_spans()
    bind = next(each for each in spans if each.name == "bind")
    inside = [
        each
        for each in spans
        if each.name == "commit" and each.parent is not None and each.parent.span_id == bind.context.span_id
    ]
    assert len(inside) == 1
    assert inside[0].attributes is not None
    assert (inside[0].attributes["lattice.term"], inside[0].attributes["lattice.writes"]) == (1, 3)


async def test_assignment_and_start_spans_name_workload_and_term(
    exporter: InMemorySpanExporter,
) -> None:
    clock = VirtualClock()
    async with agent_world.a_leader(clock, 10.0, "n1") as leader:
        machine = agent_world.an_agent_node(clock, {"here": leader})
        machine.start()
        await leader.add(agent_world.a_sleeping_workload())
        await leader.bind("web", agent_world.applied("n1"))
        await clock.advance(5)
        await settle()
        await machine.kill()
    ordered = [each for each in span_attributes(exporter, "order") if "default/web" in each["workloads"]]
    assert [(each["node"], each["term"]) for each in ordered] == [("n1", 1)]
    started = span_attributes(exporter, "start")
    assert len(started) == 1
    assert {key: started[0][key] for key in ("workload", "revision", "container", "term", "failure")} == {
        "workload": "default/web",
        "revision": agent_world.REVISION,
        "container": "main",
        "term": 1,
        "failure": "",
    }


def test_no_spans_without_an_exporter() -> None:
    assert TRACING.span("look", controller="x", key="y") is NOOP_SPAN
    TRACING.enable(None)
    assert TRACING.span("look") is NOOP_SPAN, "an API without an SDK behind it"


@pytest.mark.parametrize(
    ("before", "is_loaded"),
    [
        pytest.param("", False, id="without an SDK nothing is loaded"),
        pytest.param(SDK, True, id="an SDK is found"),
    ],
)
def test_tracing_is_enabled_with_an_sdk(before: str, is_loaded: bool) -> None:
    script = f"{before}import sys, lattice.app.serve\nfrom lattice.tracing import NOOP_SPAN, TRACING\nTRACING.enable()\n"
    script += "print('opentelemetry.trace' in sys.modules, TRACING.span('x') is not NOOP_SPAN)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(is_loaded), str(is_loaded)]
