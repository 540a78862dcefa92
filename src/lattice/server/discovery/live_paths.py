"""OpenAPI v3 paths of the requests that the leader answers from live state: usage, spending, workload logs
and retry."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.workload import LatticeWorkload
from lattice.server.discovery.fleet_query_paths import API_PREFIX
from lattice.server.discovery.meta_schemas import STATUS
from lattice.server.discovery.operations import definition_name

WORKLOAD_PATH = f"/{API_PREFIX}/namespaces/{{namespace}}/{LatticeWorkload.resource.plural}/{{name}}"
_PATH_PARAMETERS: Final = [
    {
        "name": name,
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
        "description": f"{name.capitalize()} of the workload.",
    }
    for name in ("namespace", "name")
]
_LOG: Final = {
    "container": ("string", "Which container; needed if there are several."),
    "tail": ("integer", "Last lines only; all if absent."),
    "follow": ("boolean", "Then what it goes on to print."),
}
_ERROR_RESPONSES: Final = {
    "401": "Unauthorized",
    "403": "Forbidden",
    "404": "Not found",
    "503": "No server leads just now.",
}


def add_live_paths(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the OpenAPI v3 documents with the live paths added to the document of the Lattice API group."""
    if API_PREFIX not in documents:
        return dict(documents)
    document = msgspec.json.decode(documents[API_PREFIX])
    document["paths"] |= {
        f"/{API_PREFIX}/top": {
            "get": _operation(
                "readTop", "What is used at this moment, and what it costs.", _json({"type": "object"}), _TOP
            )
        },
        f"/{API_PREFIX}/spending": {
            "get": _operation(
                "readSpending", _SPENDING_DESCRIPTION, _json({"type": "object"}), _SPENDING_PARAMETERS
            )
        },
        f"{WORKLOAD_PATH}/log": {
            "get": _operation(
                "readWorkloadLog",
                "What a workload printed.",
                {"text/plain": {"schema": {"type": "string"}}},
                _query_parameters(_LOG),
            ),
            "parameters": _PATH_PARAMETERS,
        },
        f"{WORKLOAD_PATH}/retry": {
            "post": _operation("retryWorkload", "Try it again at once.", _json(_WORKLOAD), []),
            "parameters": _PATH_PARAMETERS,
        },
    }
    return {**documents, API_PREFIX: msgspec.json.encode(document, order="sorted")}


def _query_parameters(parameters: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": {"type": value_type}, "description": description}
        for name, (value_type, description) in parameters.items()
    ]


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    name: str, description: str, content: Mapping[str, Any], parameters: list[dict[str, Any]]
) -> dict[str, Any]:
    error_content = _json({"$ref": f"#/components/schemas/{STATUS}"})
    return {
        "operationId": f"{name}LatticeDev{VERSION.capitalize()}",
        "description": description,
        "tags": [f"{GROUP.replace('.', '')}_{VERSION}"],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": content}}
        | {
            code: {"description": error, "content": error_content} for code, error in _ERROR_RESPONSES.items()
        },
    }


_TOP: Final = _query_parameters(
    {
        "of": (
            "string",
            "Some of the tables only: pools, clusters, nodes, services, budgets, separated by commas.",
        )
    }
)
_SPENDING_DESCRIPTION: Final = (
    "What was paid per hour in the last seven days: "
    "[seconds since 1970, micro-dollars per hour from then on]."
)
_SPENDING_PARAMETERS: Final = _query_parameters({"by": ("string", "pool, service or label:KEY.")})
_WORKLOAD: Final = {"$ref": f"#/components/schemas/{definition_name(LatticeWorkload.resource)}"}
