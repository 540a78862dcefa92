"""OpenAPI v3 paths besides the verbs on objects: fleet queries, usage, spending, problems, diagnoses, workload
logs and retry.

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
    {"csv": string("The table."), "source": string("Source of the content."), "asOf": string("YYYY-MM-DD.")},
    ("csv", "source"),
)
_OBJECT_REFERENCE_SCHEMA = object_schema(
    "An object.",
    {
        "kind": string("Kind of the object."),
        "name": string("Name of the object."),
        "namespace": string("Namespace of the object."),
    },
    ("kind", "name"),
)
_SERVICE = string("The service, as namespace/name.", pattern="^[^/]+/[^/]+$")
SHARED_PROPERTIES: Final[dict[str, Schema]] = {
    "manifests": {
        "type": "array",
        "items": {"type": "object"},
        "description": "Assume that these manifests are applied; they are validated as in an apply.",
    },
    "yaml": string("More manifests, as YAML text."),
    "delete": {
        "type": "array",
        "items": _OBJECT_REFERENCE_SCHEMA,
        "description": "Assume that these objects are deleted.",
    },
    "namespace": string("Namespace of manifests and deletions without a namespace.", default="default"),
    "fieldManager": string("User that would apply the manifests.", default="lattice"),
    "force": boolean("Assume that fields of other field managers are taken over."),
    "prices": {"type": "array", "items": _TABLE, "description": "Prices that override the server's prices."},
    "latency": {**_TABLE, "description": "Round-trip times (from,to,ms) in place of the server's."},
}
_EXPECT: Schema = {
    "description": "Id of an earlier plan, or that plan. If the outcome now differs, the answer is 409.",
    "x-kubernetes-preserve-unknown-fields": True,
}
_SCENARIO_PROPERTIES: dict[str, Schema] = {
    "lose": string_list("Pools that are lost."),
    "drop": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
        "description": "Pairs of a pool and a compliance that the pool loses.",
    },
    "priceMillionths": integer("Factor for all prices, in millionths."),
}
QUERY_PROPERTIES: Final[dict[str, dict[str, Schema]]] = {
    "plan": {"expect": _EXPECT},
    "why": {"service": _SERVICE, "pool": string("Show only this pool.")},
    "fit": {"service": _SERVICE, **_SCENARIO_PROPERTIES},
    "whatif": {**_SCENARIO_PROPERTIES, "loseEach": boolean("Assume the loss of every pool in turn.")},
    "cost": {
        "by": string("pool, service, node or label:KEY.", default="pool"),
        "inNamespace": string("Show only the cost of the services in this namespace."),
    },
    "optimise": {
        "maxMoves": integer("Maximum number of replicas to move; absent means no limit."),
        "paybackHours": integer("Hours within which a move must save its own cost."),
        "moveCostMicros": integer("Cost of moving one replica, in micro-dollars."),
        "timeLimitSeconds": {
            "type": "number",
            "description": "Time limit of the search; at most the limit of the server.",
        },
    },
    APPLY_QUERY: {"expect": _EXPECT},
}
QUERY_DESCRIPTIONS = {
    "plan": "Compute the placements, the cost and the unplaced services after these manifests are applied.",
    "why": "Explain the placement of a service and every rejected pool.",
    "fit": "List the smallest changes that would place a service.",
    "whatif": "Compute the moves and the cost after an event.",
    "cost": "List the cost of the fleet by pool, service, node or label.",
    "optimise": "List the moves that would make the fleet cheaper.",
    APPLY_QUERY: "Apply the manifests of a plan, if the outcome still equals the plan.",
}
# Fields that the body of a query must have; such a query also requires a body.
REQUIRED_FIELDS = {"why": ("service",), "fit": ("service",), APPLY_QUERY: ("expect",)}
_QUERY_ERRORS = {
    "401": "Unauthorized",
    "403": "The user may not query the fleet.",
    "409": "The outcome differs from the expected plan.",
    "422": "A manifest or the query is invalid; every cause is listed.",
    "429": "Too many queries; retry after Retry-After seconds.",
    "503": "The query exceeded its time limit.",
}
_LIVE_ERRORS = {
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not found",
    "503": "No server is leader at present.",
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
    result = {
        "type": "object",
        "description": "The result, with the store `revision` that it was computed from.",
    }
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
    top = _operation("readTop", "Current usage and cost.", any_object, _LIVE_ERRORS)
    tables = (
        "Tables to return, separated by commas: pools, clusters, nodes, services, budgets. "
        "Absent means all tables."
    )
    top["parameters"] = [_query_parameter("of", "string", tables)]
    spending_description = (
        "Cost per hour in the last seven days: "
        "[seconds since 1970, micro-dollars per hour from that time on]."
    )
    spending = _operation("readSpending", spending_description, any_object, _LIVE_ERRORS)
    spending["parameters"] = [_query_parameter("by", "string", "pool, service or label:KEY.")]
    problems = _operation("readProblems", "What is wrong now, by severity.", any_object, _LIVE_ERRORS)
    problems["parameters"] = []
    diagnosis = _operation(
        "readDiagnosis", "Why a service or a workload does not run.", any_object, _LIVE_ERRORS
    )
    diagnosis["parameters"] = [
        _query_parameter("service", "string", "The service, as namespace/name."),
        _query_parameter("workload", "string", "The workload, as namespace/name; instead of a service."),
    ]
    text = {"text/plain": {"schema": {"type": "string"}}}
    log = _operation("readWorkloadLog", "Log of a workload.", text, _LIVE_ERRORS)
    log["parameters"] = [
        _query_parameter("container", "string", "Container; required if the workload has several."),
        _query_parameter("tail", "integer", "Number of last lines; absent means all lines."),
        _query_parameter("follow", "boolean", "Follow the log."),
    ]
    workload = _json({"$ref": f"#/components/schemas/{definition_name(LatticeWorkload.resource)}"})
    retry = _operation("retryWorkload", "Restart the failed workload now.", workload, _LIVE_ERRORS)
    retry["parameters"] = []
    return {
        f"/{API_PREFIX}/top": {"get": top},
        f"/{API_PREFIX}/spending": {"get": spending},
        f"/{API_PREFIX}/problems": {"get": problems},
        f"/{API_PREFIX}/diagnosis": {"get": diagnosis},
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
