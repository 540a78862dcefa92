"""Fleet queries to the server: the request body, the answer, and errors with the file and line of every
field."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from lattice.cli.client.http import Client, Request
from lattice.cli.client.kind_names import Target, kind_names
from lattice.cli.client.manifests import locate_error, target_of
from lattice.cli.fleet.fleet_inputs import FleetInputs, read_table
from lattice.cli.output import messages as say
from lattice.errors import Cause, LatticeError, UsageError
from lattice.kinds.core import Namespace
from lattice.kinds.meta.base import GROUP, VERSION
from lattice.kinds.meta.json_body import encode
from lattice.kinds.meta.timestamps import format_date
from lattice.kinds.meta.yaml_manifest import Document
from lattice.manifest_files import load_manifests
from lattice.placement.feed.placement_input import KINDS_BY_NAME
from lattice.server.fleet_queries.query_schema import MANIFEST_FIELD

FLEET_API_PATH = f"/apis/{GROUP}/{VERSION}/fleet"
# Queries of the commands that have the option --force-conflicts.
COMMANDS_WITH_FORCE = ("plan", "apply")
# Timeout in seconds of `lattice apply --plan`, for which the server computes the plan before it writes.
APPLY_TIMEOUT_S = 300.0
Manifests = Sequence[tuple[Document, Target]]
# Kind, namespace, name.
Key = tuple[str, str, str]


def query_server(sources: FleetInputs, query: dict[str, Any]) -> dict[str, Any]:
    """Answer of the server to a fleet query."""
    body = {name: value for name, value in query.items() if name != "ask" and value is not None}
    answer = _post_query(sources, query["ask"], body)
    # Encoded and decoded as JSON, so that numbers have the same Python types as in an offline answer.
    document: dict[str, Any] = msgspec.json.decode(encode(answer))
    return document


def apply_planned(sources: FleetInputs, plan_id: str, manager: str) -> dict[Key, tuple[str, Any]]:
    """Apply all manifests in one request, and return the outcome (created, configured or unchanged) and the
    object by key. The server rejects the request if the result would differ from the plan."""
    answer = _post_query(sources, "apply", {"expect": plan_id, "fieldManager": manager})
    if answer["meanwhile"]:
        say.warning(
            f"another client changed {', '.join(answer['meanwhile'])} at the same time: "
            "`lattice plan` shows the combined result"
        )
    results = {}
    for applied in answer["objects"]:
        value = applied["object"]
        key = value["kind"], value["metadata"].get("namespace", ""), value["metadata"]["name"]
        results[key] = (applied["verdict"], value)
    return results


def _post_query(sources: FleetInputs, ask: str, body: dict[str, Any]) -> Any:
    manifests = _manifests(sources)
    body |= {
        "manifests": [document.value for document, _ in manifests],
        "namespace": sources.namespace,
        "force": sources.force,
    }
    deletions: list[dict[str, str]] = []
    for word in sources.deletions:
        target = kind_names().parse_targets([word])[0]
        if not target.name:
            raise UsageError(f"{word!r} is not kind/name", fix="write KIND/NAME, such as pool/us-east")
        deletion = {"kind": target.resource.kind, "name": target.name}
        deletions.append(deletion | ({"namespace": sources.namespace} if target.resource.namespaced else {}))
    # Contents of the local price and latency files, which the server cannot read itself.
    prices = []
    for path in sources.prices:
        modified = format_date(Path(path).stat().st_mtime)
        prices.append({"csv": read_table(path), "source": path, "asOf": modified})
    body |= {"delete": deletions, "prices": prices}
    if sources.latency:
        body["latency"] = {"csv": read_table(sources.latency), "source": sources.latency}
    context = click.get_current_context(silent=True)
    source = context.get_parameter_source("request_timeout") if context else None
    timeout = sources.connection.timeout
    # A fleet query may take minutes: unless the user gave a timeout, wait APPLY_TIMEOUT_S, as for
    # `lattice apply --plan`, plus the time limit of the search.
    if source in (None, click.core.ParameterSource.DEFAULT):
        timeout = max(APPLY_TIMEOUT_S, timeout) + body.get("timeLimitSeconds", 0.0)
    client = Client(sources.connection.server, timeout)
    try:
        return client.send(Request("POST", f"{FLEET_API_PATH}/{ask}", body=body)).body
    except LatticeError as e:
        raise _locate_errors(e, manifests, can_force=ask in COMMANDS_WITH_FORCE) from e
    finally:
        client.close()


def _manifests(sources: FleetInputs) -> Manifests:
    """The manifests to send: of the kinds that placement reads, and of namespaces. A note counts the manifests
    of kinds that placement does not read."""
    pairs = sources.manifests
    if not pairs and sources.files:
        documents = load_manifests(sources.files, sources.recursive)
        pairs = tuple((document, target_of(document, kind_names())) for document in documents)
    ignored = Counter(
        target.resource.kind for _, target in pairs if target.resource.kind not in KINDS_BY_NAME
    )
    if ignored:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(ignored.items()))
        say.note(f"ignored {kinds}: placement does not use these kinds")
    accepted = {*KINDS_BY_NAME, Namespace.resource.kind}
    return [(document, target) for document, target in pairs if target.resource.kind in accepted]


def _locate_errors(e: LatticeError, manifests: Manifests, *, can_force: bool) -> LatticeError:
    """Add the file and line of each manifest to its errors; print all of these errors but the last, and return
    the last error for the caller to raise. Without an error of a manifest, return `e`."""
    causes_by_index: dict[int, list[Cause]] = {}
    for cause in e.causes:
        # The server names fields as manifests[3].spec.replicas; the index selects the local file.
        if (match := MANIFEST_FIELD.fullmatch(cause.field)) and int(match[1]) < len(manifests):
            causes_by_index.setdefault(int(match[1]), []).append(Cause(match[2], cause.message, cause.reason))
    problems = []
    for index, causes in sorted(causes_by_index.items()):
        if field_causes := [cause for cause in causes if cause.field]:
            problem = type(e)(e.message, fix=e.fix, causes=field_causes)
        else:
            # If no cause names a field, the message of the cause contains the fix.
            message, _, fix = causes[0].message.partition(" (fix: ")
            problem = type(e)(message, fix=fix.removesuffix(")"))
        problems.append(locate_error(problem, *manifests[index], can_force=can_force))
    for problem in problems[:-1]:
        say.error(problem)
    return problems[-1] if problems else e
