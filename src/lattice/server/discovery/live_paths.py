"""What only a running fleet can answer, in OpenAPI v3: what is used, what a workload printed, and that it be tried again."""

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
    """The OpenAPI v3 documents, that of our own group with these paths in it."""
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
            "get": _operation("readWorkloadLog", "What a workload printed.", _text(), _queries(_LOG)),
            "parameters": _PATH_PARAMETERS,
        },
        f"{WORKLOAD_PATH}/retry": {
            "post": _operation("retryWorkload", "Try it again at once.", _json(_WORKLOAD), []),
            "parameters": _PATH_PARAMETERS,
        },
    }
    return {**documents, API_PREFIX: msgspec.json.encode(document, order="sorted")}


def _queries(named: Mapping[str, tuple[str, str]]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "query", "schema": {"type": kind}, "description": says}
        for name, (kind, says) in named.items()
    ]


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _text() -> dict[str, Any]:
    return {"text/plain": {"schema": {"type": "string"}}}


def _operation(
    name: str, says: str, answer: Mapping[str, Any], parameters: list[dict[str, Any]]
) -> dict[str, Any]:
    refused = _json({"$ref": f"#/components/schemas/{STATUS}"})
    return {
        "operationId": f"{name}LatticeDev{VERSION.capitalize()}",
        "description": says,
        "tags": [f"{GROUP.replace('.', '')}_{VERSION}"],
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": answer}}
        | {code: {"description": words, "content": refused} for code, words in _ERROR_RESPONSES.items()},
    }


_TOP: Final = _queries(
    {
        "of": (
            "string",
            "Some of the tables only: pools, clusters, nodes, services, budgets, separated by commas.",
        )
    }
)
_SPENDING_DESCRIPTION: Final = "What was paid per hour in the last seven days: [seconds since 1970, micro-dollars per hour from then on]."
_SPENDING_PARAMETERS: Final = _queries({"by": ("string", "pool, service or label:KEY.")})
_WORKLOAD: Final = {"$ref": f"#/components/schemas/{definition_name(LatticeWorkload.resource)}"}
