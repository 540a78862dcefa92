"""A question about the fleet, put to the server: its answer, and what it refuses with the file and line of every field."""

import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from lattice.cli.client.http import Client, Request
from lattice.cli.client.kind_names import Target, kind_names
from lattice.cli.client.manifests import locate_error, target_of
from lattice.cli.fleet.offline_world import PLACEMENT_KINDS
from lattice.cli.output import messages as say
from lattice.errors import Cause, LatticeError, UsageError
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.yaml_manifest import Document
from lattice.manifest_files import load_manifests

if TYPE_CHECKING:
    from lattice.cli.client.options import Connection
    from lattice.cli.fleet.fleet_command import FleetInputs

FLEET_API_PATH = f"/apis/{GROUP}/{VERSION}/fleet"
APPLY_TIMEOUT_S = 300.0  # seconds for an apply that plans before
_MANIFEST_FIELD = re.compile(r"manifests\[(\d+)\]\.?(.*)")
Manifests = Sequence[tuple[Document, Target]]
Key = tuple[str, str, str]  # kind, namespace, name


def query_server(sources: "FleetInputs", question: dict[str, Any]) -> dict[str, Any]:
    body = {name: value for name, value in question.items() if name != "ask" and value is not None}
    told = _post_query(sources, question["ask"], body)
    found: dict[str, Any] = msgspec.json.decode(
        encode(told)
    )  # numbers as this program would have found them itself
    return found


def apply_planned(sources: "FleetInputs", plan_id: str, manager: str) -> dict[Key, tuple[str, Any]]:
    """What became of each object, all applied together; refused if the outcome is not that of the plan."""
    told = _post_query(sources, "apply", {"expect": plan_id, "fieldManager": manager})
    if told["meanwhile"]:
        say.warning(
            f"somebody else changed {', '.join(told['meanwhile'])} at the same moment: `lattice plan` shows what it comes to"
        )
    return {_key(each["object"]): (each["verdict"], each["object"]) for each in told["objects"]}


def _key(value: dict[str, Any]) -> Key:
    return value["kind"], value["metadata"].get("namespace", ""), value["metadata"]["name"]


def _post_query(sources: "FleetInputs", ask: str, body: dict[str, Any]) -> Any:
    given = _manifests(sources)
    body |= {
        "manifests": [document.value for document, _ in given],
        "namespace": sources.namespace,
        "force": sources.force,
    }
    body |= {
        "delete": [_deletion(word, sources.namespace) for word in sources.deletions],
        **_csv_tables(sources),
    }
    client = Client(sources.connection.server, _request_timeout_s(sources.connection, body))
    try:
        return client.send(Request("POST", f"{FLEET_API_PATH}/{ask}", body=body)).body
    except LatticeError as e:
        raise _locate_errors(e, given) from e
    finally:
        client.close()


def _request_timeout_s(connection: "Connection", body: dict[str, Any]) -> float:
    """As long as was asked for; unless it was, also as long as the search may take."""
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("request_timeout") if context else None
    is_default = source in (None, click.core.ParameterSource.DEFAULT)
    return (
        max(APPLY_TIMEOUT_S, connection.timeout) + body.get("timeLimitSeconds", 0.0)
        if is_default
        else connection.timeout
    )


def _manifests(sources: "FleetInputs") -> Manifests:
    """What placement looks at, and the namespaces that it may be in."""
    found = sources.manifests or [(each, target_of(each, kind_names())) for each in _documents(sources)]
    passed_over = Counter(
        target.resource.kind for _, target in found if target.resource.kind not in PLACEMENT_KINDS
    )
    if passed_over:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(passed_over.items()))
        say.note(f"ignored {kinds}: placement does not look at them")
    wanted = {*PLACEMENT_KINDS, Namespace.resource.kind}
    return [(document, target) for document, target in found if target.resource.kind in wanted]


def _documents(sources: "FleetInputs") -> list[Document]:
    return load_manifests(sources.files, sources.recursive) if sources.files else []


def _deletion(word: str, namespace: str) -> dict[str, str]:
    target = kind_names().parse_targets([word])[0]
    if not target.name:
        raise UsageError(f"{word!r} is not kind/name", fix="write it like pool/us-east")
    return {"kind": target.resource.kind, "name": target.name} | (
        {"namespace": namespace} if target.resource.namespaced else {}
    )


def _csv_tables(sources: "FleetInputs") -> dict[str, Any]:
    """Files that are here and not where the server is."""
    from lattice.cli.fleet.fleet_command import _read_table

    prices = [
        {"csv": _read_table(path), "source": path, "asOf": _modified_date(path)} for path in sources.prices
    ]
    latency = (
        {"latency": {"csv": _read_table(sources.latency), "source": sources.latency}}
        if sources.latency
        else {}
    )
    return {"prices": prices, **latency}


def _modified_date(path: str) -> str:
    return datetime.fromtimestamp(Path(path).stat().st_mtime, UTC).date().isoformat()


def _locate_errors(e: LatticeError, given: Manifests) -> LatticeError:
    """The last refusal; those before it are told already."""
    by_place: dict[int, list[Cause]] = {}
    for cause in e.causes:
        if (found := _MANIFEST_FIELD.fullmatch(cause.field)) and int(found[1]) < len(given):
            by_place.setdefault(int(found[1]), []).append(Cause(found[2], cause.message, cause.reason))
    problems = [_located_problem(e, causes, *given[index]) for index, causes in sorted(by_place.items())]
    for problem in problems[:-1]:
        say.error(problem)
    return problems[-1] if problems else e


def _located_problem(
    e: LatticeError, causes: list[Cause], document: Document, target: Target
) -> LatticeError:
    told = [cause for cause in causes if cause.field]
    if told:
        return locate_error(type(e)(e.message, fix=e.fix, causes=told), document, target)
    what, _, fix = causes[0].message.partition(" (fix: ")
    return locate_error(type(e)(what, fix=fix.removesuffix(")")), document, target)
