"""OpenAPI v3 paths of the fleet queries. Discovery omits the queries, because kubectl would take the paths
for resources."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lattice.kinds.meta.base import GROUP, VERSION
from lattice.server.discovery.meta_schemas import (
    STATUS,
    Schema,
    boolean,
    integer,
    object_schema,
    string,
    string_list,
)
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
_REQUIRED = {"why": ("service",), "fit": ("service",), APPLY_QUERY: ("expect",)}
_ERROR_RESPONSES = {
    "401": "Unauthorized",
    "403": "May not look at the fleet.",
    "409": "The outcome is another than expected.",
    "422": "A manifest or the question is wrong; every cause is listed.",
    "429": "Busy; come again after Retry-After seconds.",
    "503": "No answer in time.",
}


def add_fleet_query_paths(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the OpenAPI v3 documents with the fleet queries in the document of the Lattice API group."""
    if API_PREFIX not in documents:
        return dict(documents)
    document = msgspec.json.decode(documents[API_PREFIX])
    document["paths"] |= {
        f"/{API_PREFIX}/fleet/{query}": {"post": _operation(query)} for query in QUERY_DESCRIPTIONS
    }
    return {**documents, API_PREFIX: msgspec.json.encode(document, order="sorted")}


def _operation(query: str) -> dict[str, Any]:
    body = object_schema(
        QUERY_DESCRIPTIONS[query], SHARED_PROPERTIES | QUERY_PROPERTIES[query], _REQUIRED.get(query, ())
    )
    result = {"type": "object", "description": "The answer, with the `revision` that it was found at."}
    error_content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{STATUS}"}}}
    return {
        "operationId": f"askLatticeDev{VERSION.capitalize()}Fleet{query.capitalize()}",
        "description": f"{QUERY_DESCRIPTIONS[query]}{'' if query == APPLY_QUERY else ' Nothing is written.'}",
        "tags": [f"{GROUP.replace('.', '')}_{VERSION}"],
        "requestBody": {"content": {"application/json": {"schema": body}}, "required": query in _REQUIRED},
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": result}}}}
        | {
            code: {"description": description, "content": error_content}
            for code, description in _ERROR_RESPONSES.items()
        },
    }
