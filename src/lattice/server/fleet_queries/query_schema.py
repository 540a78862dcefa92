"""The bodies of fleet queries: schema, parsing, and the conversion to a query of placement."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from lattice.errors import Cause, Invalid, LatticeError, Malformed
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.quantity import MILLIONTHS
from lattice.kinds.meta.yaml_manifest import Document, load_documents

SERVICE_NAME_PATTERN = r"^[^/]+/[^/]+$"
Amount = Annotated[int, Meta(ge=0)]


# Plans, then writes the outcome: the only query that writes.
APPLY_QUERY = "apply"
MANIFEST_FIELD = re.compile(r"manifests\[(\d+)\]\.?(.*)")


class PlannedDeletion(Struct, rename="camel", forbid_unknown_fields=True):
    """An object that the query treats as deleted. An empty namespace stands for the namespace of the
    query."""

    kind: str
    name: str
    namespace: str = ""


class CsvTable(Struct, rename="camel", forbid_unknown_fields=True):
    """A price or latency table as CSV, with its source and, for prices, the day (YYYY-MM-DD) of the
    prices."""

    csv: str
    source: str
    as_of: Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""


class FleetQuery(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """Fields of every query: manifests and deletions to assume, and tables that override the tables of the
    server."""

    manifests: list[Raw] = []
    # Further manifests as YAML text.
    yaml: str = ""
    delete: list[PlannedDeletion] = []
    namespace: Annotated[str, Meta(min_length=1)] = "default"
    field_manager: Annotated[str, Meta(min_length=1)] = "lattice"
    force: bool = False
    prices: list[CsvTable] = []
    latency: CsvTable | None = None


class PlanQuery(FleetQuery, kw_only=True):
    # The id of an earlier plan, or that plan. If the outcome now differs from it, the query is rejected.
    expect: str | dict[str, Any] = ""


class WhyQuery(FleetQuery, kw_only=True):
    service: Annotated[str, Meta(pattern=SERVICE_NAME_PATTERN, description="namespace/name")]
    pool: str = ""


class ScenarioQuery(FleetQuery, kw_only=True):
    """A scenario: pools that are lost, compliance standards that pools lose, and a change of all prices."""

    lose: list[str] = []
    drop: list[tuple[str, str]] = []
    price_millionths: Annotated[int, Meta(ge=0, le=1_000_000_000)] = MILLIONTHS


class FitQuery(ScenarioQuery, kw_only=True):
    service: Annotated[str, Meta(pattern=SERVICE_NAME_PATTERN, description="namespace/name")]


class WhatIfQuery(ScenarioQuery, kw_only=True):
    lose_each: bool = False


class CostQuery(FleetQuery, kw_only=True):
    by: Annotated[str, Meta(pattern=r"^(pool|service|node|label:.+)$")] = "pool"
    # Limits the costs to the services of a namespace.
    in_namespace: str = ""


class OptimiseQuery(FleetQuery, kw_only=True):
    max_moves: Amount | None = None
    payback_hours: Annotated[int, Meta(ge=1)] = 720
    move_cost_micros: Amount = 50_000
    time_limit_seconds: Annotated[float, Meta(gt=0)] = 10.0


QUERY_TYPES: dict[str, type[FleetQuery]] = {
    "plan": PlanQuery,
    "why": WhyQuery,
    "fit": FitQuery,
    "whatif": WhatIfQuery,
    "cost": CostQuery,
    "optimise": OptimiseQuery,
}
_SHARED_FIELDS = frozenset(field.encode_name for field in msgspec.structs.fields(FleetQuery)) | {"expect"}


def parse_query(name: str, body: bytes) -> FleetQuery:
    """Parse the body of a query; raise Invalid or Malformed. An apply needs a plan and manifests."""
    query_type = PlanQuery if name == APPLY_QUERY else QUERY_TYPES[name]
    try:
        query = msgspec.json.decode(body or b"{}", type=query_type)
    except msgspec.ValidationError as mismatch:
        problem, _, where = str(mismatch).partition(" - at `$")
        path = where.rstrip("`").removeprefix(".")
        problem = f"{problem[:1].lower()}{problem[1:]}".replace("`", '"')
        raise Invalid(
            f"the query cannot be read: {problem}",
            where=path,
            causes=[Cause(path, f"Invalid value: {problem}")],
        ) from mismatch
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Malformed(f"the body is not JSON: {error}", fix="send a JSON object") from error
    if (
        name == APPLY_QUERY
        and isinstance(query, PlanQuery)
        and not (query.expect and (query.manifests or query.yaml))
    ):
        missing = "manifests" if query.expect else "expect"
        cause = Cause(missing, "Required value: the id of the plan and its manifests", "FieldValueRequired")
        raise Invalid(
            cause.message,
            where=missing,
            fix="send the manifests that were planned, and the id of the plan",
            causes=[cause],
        )
    return query


def placement_query(name: str, query: FleetQuery) -> dict[str, Any]:
    """Return the query of placement: the fields that describe the question, without manifests, deletions and
    tables."""
    # msgspec cannot convert raw bytes, so the manifests are dropped first.
    fields = msgspec.to_builtins(msgspec.structs.replace(query, manifests=[], yaml=""))
    return {
        "ask": "plan" if name == APPLY_QUERY else name,
        **{field: value for field, value in fields.items() if field not in _SHARED_FIELDS},
    }


class _Search(Struct, rename="camel"):
    time_limit_seconds: Annotated[float, Meta(ge=0)] = 0.0


def search_seconds(body: bytes) -> float:
    """Return the time limit of an optimise query in seconds; 0 if the body has none or cannot be parsed."""
    try:
        return msgspec.json.decode(body or b"{}", type=_Search).time_limit_seconds
    except (msgspec.DecodeError, UnicodeError):
        return 0.0


@dataclass(frozen=True)
class QueryManifests:
    """The manifests of a query: the JSON manifests, then the documents of the YAML text."""

    manifests: Sequence[Raw]
    documents: Sequence[Document]

    @property
    def combined(self) -> list[Raw]:
        return [*self.manifests, *(Raw(encode(document.value)) for document in self.documents)]

    def with_lines(self, error: LatticeError) -> LatticeError:
        """Return the error with the YAML line in every cause that concerns a YAML document, sorted by line.

        Causes that concern no YAML document come first, unchanged.
        """
        if not self.documents or not error.causes:
            return error
        causes_with_line = []
        for cause in error.causes:
            match = MANIFEST_FIELD.fullmatch(cause.field)
            number = int(match[1]) - len(self.manifests) if match else -1
            if match is None or number < 0:
                causes_with_line.append((0, cause))
                continue
            line = self.documents[number].line_of(match[2])
            field = f"yaml:{line} {match[2]}".rstrip()
            causes_with_line.append((line, Cause(field, cause.message, cause.reason)))
        causes_with_line.sort(key=lambda pair: pair[0])
        causes = [cause for _, cause in causes_with_line]
        return type(error)(error.message, where=error.where, fix=error.fix, causes=causes)


def query_manifests(query: FleetQuery) -> QueryManifests:
    return QueryManifests(query.manifests, load_documents(query.yaml, "yaml") if query.yaml else ())
