"""OpenAPI v3 paths beside the verbs on objects: fleet queries, usage, spending, workload logs and retry.

Discovery omits the fleet queries, because kubectl would take their paths for resources.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.workload import LatticeWorkload
from lattice.server.discovery.meta_schemas import (
    STATUS,
    Schema,
    boolean,
    integer,
    object_schema,
    string,
    string_list,
)
from lattice.server.discovery.operations import definition_name
from lattice.server.fleet_queries.query_schema import APPLY_QUERY

API_PREFIX = f"apis/{GROUP}/{VERSION}"
_TABLE = object_schema(
    "A table as CSV.",
    {"csv": string("The table."), "source": string("Where it is from."), "asOf": string("YYYY-MM-DD.")},
    ("csv", "source"),
)
_OBJECT_REFERENCE_SCHEMA = object_schema(
    "An object.",
    {"kind": string("Its kind."), "name": string("Its name."), "namespace": string("Its namespace.")},
    ("kind", "name"),
)
_SERVICE = string("The service, as namespace/name.", pattern="^[^/]+/[^/]+$")
SHARED_PROPERTIES: Final[dict[str, Schema]] = {
    "manifests": {
        "type": "array",
        "items": {"type": "object"},
        "description": "As if these were applied; checked as by an apply.",
    },
    "yaml": string("More manifests, as YAML text."),
    "delete": {
        "type": "array",
        "items": _OBJECT_REFERENCE_SCHEMA,
        "description": "As if these were deleted.",
    },
    "namespace": string("Namespace of manifests and deletions that name none.", default="default"),
    "fieldManager": string("As whom the manifests would be applied.", default="lattice"),
    "force": boolean("As if fields were taken over from who else manages them."),
    "prices": {"type": "array", "items": _TABLE, "description": "Prices that go before the server's."},
    "latency": {**_TABLE, "description": "Round trips (from,to,ms) instead of the server's."},
}
_EXPECT: Schema = {
    "description": "The id of an earlier plan, or that plan: another outcome is refused with 409.",
    "x-kubernetes-preserve-unknown-fields": True,
}
_SCENARIO_PROPERTIES: dict[str, Schema] = {
    "lose": string_list("Pools that are gone."),
    "drop": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
        "description": "Pairs of a pool and a certificate that it loses.",
    },
    "priceMillionths": integer("All prices times this, in millionths."),
}
QUERY_PROPERTIES: Final[dict[str, dict[str, Schema]]] = {
    "plan": {"expect": _EXPECT},
    "why": {"service": _SERVICE, "pool": string("Only what is about this pool.")},
    "fit": {"service": _SERVICE, **_SCENARIO_PROPERTIES},
    "whatif": {**_SCENARIO_PROPERTIES, "loseEach": boolean("Every pool in turn is gone.")},
    "cost": {
        "by": string("pool, service or label:KEY.", default="pool"),
        "inNamespace": string("Only what the services of it pay."),
    },
    "optimise": {
        "maxMoves": integer("Move at most so many replicas; any number if absent."),
        "paybackHours": integer("A move must save what it costs within so many hours."),
        "moveCostMicros": integer("What moving one replica costs, in millionths of a dollar."),
        "timeLimitSeconds": {
            "type": "number",
            "description": "How long to search; no more than the server's own limit.",
        },
    },
    APPLY_QUERY: {"expect": _EXPECT},
}
QUERY_DESCRIPTIONS = {
    "plan": "What would applying these manifests change, what would it cost, "
    "and who would be left without a place?",
    "why": "Why is a service where it is, and why not in each of the other pools?",
    "fit": "What are the smallest changes that would give a service its place?",
    "whatif": "Who would move where, and what would it cost, if this happened?",
    "cost": "What does everything cost, and whose part is how much?",
    "optimise": "Which services should move where to make the whole fleet cheaper?",
    APPLY_QUERY: "Apply the manifests of a plan, if the outcome is still that of the plan.",
}
# Fields that the body of a query must have; such a query also requires a body.
REQUIRED_FIELDS = {"why": ("service",), "fit": ("service",), APPLY_QUERY: ("expect",)}
_QUERY_ERRORS = {
    "401": "Unauthorized",
    "403": "May not look at the fleet.",
    "409": "The outcome is another than expected.",
    "422": "A manifest or the question is wrong; every cause is listed.",
    "429": "Busy; come again after Retry-After seconds.",
    "503": "No answer in time.",
}
_LIVE_ERRORS = {
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not found",
    "503": "No server leads just now.",
}
WORKLOAD_PATH = f"/{API_PREFIX}/namespaces/{{namespace}}/{LatticeWorkload.resource.plural}/{{name}}"
_WORKLOAD_PATH_PARAMETERS: Final = [
    {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": f"{name.capitalize()} of the workload.",
    }
    for name in ("namespace", "name")
]


def add_extra_paths(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the OpenAPI v3 documents with the extra paths in the document of the Lattice API group."""
    if API_PREFIX not in documents:
        return dict(documents)
    document = msgspec.json.decode(documents[API_PREFIX])
    document["paths"] |= _live_paths()
    result = {"type": "object", "description": "The answer, with the `revision` that it was found at."}
    for query, question in QUERY_DESCRIPTIONS.items():
        description = question if query == APPLY_QUERY else f"{question} Nothing is written."
        operation = _operation("ask", description, _json(result), _QUERY_ERRORS)
        operation["operationId"] += f"Fleet{query.capitalize()}"
        properties = SHARED_PROPERTIES | QUERY_PROPERTIES[query]
        body = object_schema(question, properties, REQUIRED_FIELDS.get(query, ()))
        operation["requestBody"] = {"content": _json(body), "required": query in REQUIRED_FIELDS}
        document["paths"][f"/{API_PREFIX}/fleet/{query}"] = {"post": operation}
    return {**documents, API_PREFIX: msgspec.json.encode(document, order="sorted")}


def _live_paths() -> dict[str, Any]:
    any_object = _json({"type": "object"})
    top = _operation("readTop", "What is used at this moment, and what it costs.", any_object, _LIVE_ERRORS)
    tables = "Some of the tables only: pools, clusters, nodes, services, budgets, separated by commas."
    top["parameters"] = [_query_parameter("of", "string", tables)]
    spending_description = (
        "What was paid per hour in the last seven days: "
        "[seconds since 1970, micro-dollars per hour from then on]."
    )
    spending = _operation("readSpending", spending_description, any_object, _LIVE_ERRORS)
    spending["parameters"] = [_query_parameter("by", "string", "pool, service or label:KEY.")]
    text = {"text/plain": {"schema": {"type": "string"}}}
    log = _operation("readWorkloadLog", "What a workload printed.", text, _LIVE_ERRORS)
    log["parameters"] = [
        _query_parameter("container", "string", "Which container; needed if there are several."),
        _query_parameter("tail", "integer", "Last lines only; all if absent."),
        _query_parameter("follow", "boolean", "Then what it goes on to print."),
    ]
    workload = _json({"$ref": f"#/components/schemas/{definition_name(LatticeWorkload.resource)}"})
    retry = _operation("retryWorkload", "Try it again at once.", workload, _LIVE_ERRORS)
    retry["parameters"] = []
    return {
        f"/{API_PREFIX}/top": {"get": top},
        f"/{API_PREFIX}/spending": {"get": spending},
        f"{WORKLOAD_PATH}/log": {"get": log, "parameters": _WORKLOAD_PATH_PARAMETERS},
        f"{WORKLOAD_PATH}/retry": {"post": retry, "parameters": _WORKLOAD_PATH_PARAMETERS},
    }


def _operation(
    name: str, description: str, content: Mapping[str, Any], errors: Mapping[str, str]
) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    for code, error in errors.items():
        responses[code] = {
            "description": error,
            "content": _json({"$ref": f"#/components/schemas/{STATUS}"}),
        }
    return {
        "operationId": f"{name}LatticeDev{VERSION.capitalize()}",
        "description": description,
        "tags": [f"{GROUP.replace('.', '')}_{VERSION}"],
        "responses": responses,
    }


def _query_parameter(name: str, value_type: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "schema": {"type": value_type}, "description": description}


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
