"""Manifests given as text give the same plan as the same objects, and errors name the line."""

import pytest
from build.fleet_query_server import ADMIN, a_server, a_service_manifest

PLACED = """
# a comment
apiVersion: lattice.dev/v1alpha1
kind: LatticeService
metadata: {name: web}
spec:
  containers: {main: {image: nginx}}
  placement: {resources: {cores: 1, memoryGi: 1}}
"""
pytestmark = pytest.mark.timeout(90)


async def test_plan_of_yaml_text_equals_plan_of_objects() -> None:
    async with a_server() as server:
        as_text, as_objects = (
            await server.ask("plan", yaml=PLACED),
            await server.ask("plan", manifests=[a_service_manifest()]),
        )
        assert as_text == as_objects
        assert [each["name"] for each in as_text[1]["services"] if each["name"] == "default/web"]
        status, told = await server.ask("apply", ADMIN, yaml=PLACED, expect=as_text[1]["id"])
        assert (status, [each["verdict"] for each in told["objects"]]) == (200, ["created"])


async def test_yaml_text_errors_name_their_line() -> None:
    async with a_server() as server:
        _, told = await server.ask(
            "plan",
            manifests=[a_service_manifest()],
            yaml=PLACED.replace("web", "api") + "  replicas: {min: -1}\n",
        )
        assert [each["field"] for each in told["details"]["causes"]] == ["yaml:9 spec.replicas.min"]
        _, told = await server.ask("plan", yaml=PLACED + "  replicas: {min: -1}\n  placment: {}\n")
        assert [each["field"] for each in told["details"]["causes"]] == [
            "yaml:9 spec.replicas.min",
            "yaml:10 spec.placment",
        ]
        _, told = await server.ask(
            "plan", manifests=[a_service_manifest(replicas={"min": -1})], yaml=PLACED.replace("web", "api")
        )
        assert [each["field"] for each in told["details"]["causes"]] == ["manifests[0].spec.replicas.min"]
        status, told = await server.ask("plan", yaml="a: b\n c: d\n")
        assert (status, told["message"].partition(" is not")[0]) == (400, "yaml:2:")
