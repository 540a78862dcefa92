"""The body of a question about the fleet: what may be in it, and what placement is asked by it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from lattice.errors import Cause, Invalid, LatticeError, Malformed
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.meta.base import Kind
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.yaml_manifest import Document, load_documents
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

PLACEMENT_INPUT_KINDS: tuple[type[Kind], ...] = (
    LatticePool, LatticeNodeClass, CloudInfrastructure, StaticInfrastructure, LatticePlacementPolicy, LatticeService,
    LatticeCluster, LatticeLedger, LatticeNode, LatticeWorkload,
)  # fmt: skip
SERVICE_NAME_PATTERN = r"^[^/]+/[^/]+$"
Amount = Annotated[int, Meta(ge=0)]


APPLY_QUERY = "apply"  # a plan, and then what it says: the one that writes
_MANIFEST_FIELD = re.compile(r"manifests\[(\d+)\]\.?(.*)")


class PlannedDeletion(Struct, rename="camel", forbid_unknown_fields=True):
    """An object that would be deleted. Without a namespace it is in the one of the question."""

    kind: str
    name: str
    namespace: str = ""


class CsvTable(Struct, rename="camel", forbid_unknown_fields=True):
    """Prices or round trips as CSV, with their name and, of prices, the day that they are of."""

    csv: str
    source: str
    as_of: Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""


class FleetQuery(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What every question may say: manifests and deletions as if they had happened, and tables before the server's own."""

    manifests: list[Raw] = []
    yaml: str = ""  # more of them, as people write them
    delete: list[PlannedDeletion] = []
    namespace: Annotated[str, Meta(min_length=1)] = "default"
    field_manager: Annotated[str, Meta(min_length=1)] = "lattice"
    force: bool = False
    prices: list[CsvTable] = []
    latency: CsvTable | None = None


class PlanQuery(FleetQuery, kw_only=True):
    expect: str | dict[str, Any] = (
        ""  # the id of an earlier plan, or that plan: refused if the outcome is another
    )


class WhyQuery(FleetQuery, kw_only=True):
    service: Annotated[str, Meta(pattern=SERVICE_NAME_PATTERN, description="namespace/name")]
    pool: str = ""


class ScenarioQuery(FleetQuery, kw_only=True):
    """What happens to the fleet."""

    lose: list[str] = []
    drop: list[tuple[str, str]] = []
    price_millionths: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1_000_000


class FitQuery(ScenarioQuery, kw_only=True):
    service: Annotated[str, Meta(pattern=SERVICE_NAME_PATTERN, description="namespace/name")]


class WhatIfQuery(ScenarioQuery, kw_only=True):
    lose_each: bool = False


class CostQuery(FleetQuery, kw_only=True):
    by: Annotated[str, Meta(pattern=r"^(pool|service|label:.+)$")] = "pool"
    in_namespace: str = ""  # only what its services pay


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
_SHARED_FIELDS = frozenset(each.encode_name for each in msgspec.structs.fields(FleetQuery)) | {"expect"}


def parse_query(ask: str, body: bytes) -> FleetQuery:
    question = _read(PlanQuery if ask == APPLY_QUERY else QUERY_TYPES[ask], body)
    if (
        ask == APPLY_QUERY
        and isinstance(question, PlanQuery)
        and not (question.expect and (question.manifests or question.yaml))
    ):
        missing = "manifests" if question.expect else "expect"
        cause = Cause(missing, "Required value: name the plan and give its manifests", "FieldValueRequired")
        raise Invalid(
            cause.message,
            where=missing,
            fix="send the manifests that were planned, and the id of the plan",
            causes=[cause],
        )
    return question


def _read(kind: type[FleetQuery], body: bytes) -> FleetQuery:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as mismatch:
        what, _, where = str(mismatch).partition(" - at `$")
        path = where.rstrip("`").removeprefix(".")
        what = f"{what[:1].lower()}{what[1:]}".replace("`", '"')
        raise Invalid(
            f"the question cannot be read: {what}", where=path, causes=[Cause(path, f"Invalid value: {what}")]
        ) from mismatch
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Malformed(f"the body is not JSON: {error}", fix="send a JSON object") from error


def placement_query(ask: str, question: FleetQuery) -> dict[str, Any]:
    """As placement is asked: without what only says what the world would be."""
    return {
        "ask": "plan" if ask == APPLY_QUERY else ask,
        **{
            name: value
            for name, value in msgspec.to_builtins(_without_manifests(question)).items()
            if name not in _SHARED_FIELDS
        },
    }


def _without_manifests(question: FleetQuery) -> FleetQuery:
    return msgspec.structs.replace(
        question, manifests=[], yaml=""
    )  # raw bytes are nothing that can be copied


class _Search(Struct, rename="camel"):
    time_limit_seconds: Annotated[float, Meta(ge=0)] = 0.0


def search_seconds(body: bytes) -> float:
    """What a search is told to take; 0 where there is none, or none that could be read."""
    try:
        return msgspec.json.decode(body or b"{}", type=_Search).time_limit_seconds
    except (msgspec.DecodeError, UnicodeError):
        return 0.0


@dataclass(frozen=True)
class QueryManifests:
    """All manifests of a question: those that came as JSON, then those in its text."""

    manifests: Sequence[Raw]
    documents: Sequence[Document]

    @property
    def combined(self) -> list[Raw]:
        return [*self.manifests, *(Raw(encode(each.value)) for each in self.documents)]

    def with_lines(self, error: LatticeError) -> LatticeError:
        """With the line of each field that was written as text."""
        if not self.documents or not error.causes:
            return error
        in_order = sorted(map(self._cause_with_line, error.causes), key=lambda each: each[0])
        return type(error)(
            error.message, where=error.where, fix=error.fix, causes=[cause for _, cause in in_order]
        )

    def _cause_with_line(self, cause: Cause) -> tuple[int, Cause]:
        """And the line, 0 for what was not written as text."""
        found = _MANIFEST_FIELD.fullmatch(cause.field)
        number = int(found[1]) - len(self.manifests) if found else -1
        if found is None or number < 0:
            return 0, cause
        line = self.documents[number].line_of(found[2])
        return line, Cause(f"yaml:{line} {found[2]}".rstrip(), cause.message, cause.reason)


def query_manifests(question: FleetQuery) -> QueryManifests:
    return QueryManifests(question.manifests, load_documents(question.yaml, "yaml") if question.yaml else ())
