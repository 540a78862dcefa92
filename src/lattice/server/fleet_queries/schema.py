"""The body of a question about the fleet: what may be in it, and what placement is asked by it."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw, Struct

from lattice.errors import Cause, Invalid, Malformed
from lattice.kinds.meta.base import Kind
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure, StaticInfrastructure
from lattice.kinds.ledger import LatticeLedger
from lattice.kinds.node import LatticeNode
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.policy import LatticePlacementPolicy
from lattice.kinds.pool import LatticePool
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload

LOOKED_AT: tuple[type[Kind], ...] = (
    LatticePool, LatticeNodeClass, CloudInfrastructure, StaticInfrastructure, LatticePlacementPolicy, LatticeService,
    LatticeCluster, LatticeLedger, LatticeNode, LatticeWorkload,
)  # fmt: skip
NAME = r"^[^/]+/[^/]+$"
Amount = Annotated[int, Meta(ge=0)]


class Gone(Struct, rename="camel", forbid_unknown_fields=True):
    """An object that would be deleted. Without a namespace it is in the one of the question."""

    kind: str
    name: str
    namespace: str = ""


class Table(Struct, rename="camel", forbid_unknown_fields=True):
    """Prices or round trips as CSV, with their name and, of prices, the day that they are of."""

    csv: str
    source: str
    as_of: Annotated[str, Meta(pattern=r"^(\d{4}-\d{2}-\d{2})?$")] = ""


class Question(Struct, rename="camel", forbid_unknown_fields=True, kw_only=True):
    """What every question may say: manifests and deletions as if they had happened, and tables before the server's own."""

    manifests: list[Raw] = []
    yaml: str = ""  # more of them, as people write them
    delete: list[Gone] = []
    namespace: Annotated[str, Meta(min_length=1)] = "default"
    field_manager: Annotated[str, Meta(min_length=1)] = "lattice"
    force: bool = False
    prices: list[Table] = []
    latency: Table | None = None


class PlanQuestion(Question, kw_only=True):
    expect: str | dict[str, Any] = (
        ""  # the id of an earlier plan, or that plan: refused if the outcome is another
    )


class WhyQuestion(Question, kw_only=True):
    service: Annotated[str, Meta(pattern=NAME, description="namespace/name")]
    pool: str = ""


class Happening(Question, kw_only=True):
    """What happens to the fleet."""

    lose: list[str] = []
    drop: list[tuple[str, str]] = []
    price_millionths: Annotated[int, Meta(ge=0, le=1_000_000_000)] = 1_000_000


class FitQuestion(Happening, kw_only=True):
    service: Annotated[str, Meta(pattern=NAME, description="namespace/name")]


class WhatifQuestion(Happening, kw_only=True):
    lose_each: bool = False


class CostQuestion(Question, kw_only=True):
    by: Annotated[str, Meta(pattern=r"^(pool|service|label:.+)$")] = "pool"
    in_namespace: str = ""  # only what its services pay


class OptimiseQuestion(Question, kw_only=True):
    max_moves: Amount | None = None
    payback_hours: Annotated[int, Meta(ge=1)] = 720
    move_cost_micros: Amount = 50_000
    time_limit_seconds: Annotated[float, Meta(gt=0)] = 10.0


ASKS: dict[str, type[Question]] = {
    "plan": PlanQuestion,
    "why": WhyQuestion,
    "fit": FitQuestion,
    "whatif": WhatifQuestion,
    "cost": CostQuestion,
    "optimise": OptimiseQuestion,
}
APPLY = "apply"  # a plan, and then what it says: the one that writes
_OURS = frozenset(each.encode_name for each in msgspec.structs.fields(Question)) | {"expect"}


def read_question(ask: str, body: bytes) -> Question:
    question = _read(PlanQuestion if ask == APPLY else ASKS[ask], body)
    if (
        ask == APPLY
        and isinstance(question, PlanQuestion)
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


def _read(kind: type[Question], body: bytes) -> Question:
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


def put(ask: str, question: Question) -> dict[str, Any]:
    """As placement is asked: without what only says what the world would be."""
    return {
        "ask": "plan" if ask == APPLY else ask,
        **{name: value for name, value in msgspec.to_builtins(_bare(question)).items() if name not in _OURS},
    }


def _bare(question: Question) -> Question:
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
