"""Validation reports all errors of an object at once, of the schema and of the classes."""

import json
from typing import Any

import pytest

from lattice.errors import Invalid
from lattice.kinds import KINDS
from lattice.kinds.meta.json_body import parse_json
from lattice.server.requests.catalog import Catalog
from lattice.server.resources.admission import admit

ASK = {"resources": {"cores": 1}}
SERVED = {each.resource.kind: each for each in Catalog(KINDS).served_kinds}

WRONG: list[Any] = [
    pytest.param(
        "AutomationRule",
        {"when": {"capacity": {"above": 9_000_000}, "budget": {"above": 0.5}}, "actions": []},
        {"spec.actions", "spec.when", "spec.when.capacity.above"},
        id="a list too short, and two triggers of which one cannot be",
    ),
    pytest.param(
        "AutomationRule",
        {"when": {"nodeCpu": {"above": 0.5}}, "actions": [{"webhook": {"url": "ftp://x"}}, {"event": {"reason": "busy"}}]},
        {"spec.actions[0].webhook.url", "spec.actions[1].event.reason"},
        id="one action refused by the schema, another by its class",
    ),
    pytest.param(
        "LatticeService",
        {"containers": {"main": {}, "b.c": {"command": 5}}, "placement": ASK | {"tolerations": [{"key": "-"}]}},
        {"spec.containers[b.c].command", "spec.containers.main", "spec.placement.tolerations[0].key"},
        id="one container of the wrong type, others with nothing to run",
    ),
    pytest.param(
        "LatticeWorkload",
        {
            "containers": {"main": {"command": 5}},
            "constraints": {"affinity": {"node": {"required": [{"matchExpressions": [{"key": "x", "operator": "Gt", "values": ["1"]}]}]}}},
        },
        {"spec.containers.main.command"},
        id="what depends on where it stands is not judged alone",
    ),
    pytest.param(
        "LatticeService",
        {"containers": {"main": {"command": 5}}, "placement": {"resources": {"cores": 1, "gpu": 1e300}}},
        {"spec.containers.main.command", "spec.placement.resources.gpu"},
        id="numbers beyond counting are not counted with",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "fields"), WRONG)
def test_all_validation_errors_are_reported(kind: str, spec: dict[str, Any], fields: set[str]) -> None:
    served = SERVED[kind]
    obj = {
        "apiVersion": served.resource.api_version,
        "kind": kind,
        "metadata": {"name": "x", "namespace": "default"},
        "spec": spec,
    }
    with pytest.raises(Invalid) as caught:
        admit(served, parse_json(json.dumps(obj).encode()).value, "Strict")
    assert {cause.field for cause in caught.value.causes} == fields
    assert len(caught.value.causes) == len(fields)
