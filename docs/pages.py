"""The pages of the reference, each rendered from a table in the code."""

from collections.abc import Iterator

import click
from prometheus_client.metrics_core import Metric

from docs.events import EVENTS, Told
from docs.failures import FAILURES
from docs.fields import fields
from docs.markdown import fenced, table
from docs.plugins import plugins
from docs.scenarios import scenarios
from docs.spec003 import SPEC003
from docs.spec004 import SPEC004
from docs.specification import Row, Specification
from lattice import metrics, settings
from lattice.cli.client.kind_names import KindNames
from lattice.cli.main import SECTIONS, cli
from lattice.errors import LatticeError
from lattice.kinds import KINDS
from lattice.kinds.meta.base import Kind, Resource
from lattice.kinds.meta.schema import structural_schema
from lattice.server.access.authorization import USER_VERBS_ON_MANAGED_KINDS

# Columns of help texts, independent of the terminal.
WIDTH = 100
NAMES = KindNames(kind.resource for kind in KINDS)
# Fields of every kind, described at the top of the page.
WRITTEN_BY_HAND = {"apiVersion", "kind", "metadata"}


def kinds() -> Iterator[str]:
    yield "# Kinds"
    yield (
        "Every object has `apiVersion`, `kind` and `metadata`, as in Kubernetes. `[]` stands for each item of a list, "
        "`{name}` for each key of a map. `kubectl explain KIND.spec.FIELD` shows the same in a terminal."
    )
    yield table(("kind", "short", "scope", "written by"), (_summary(kind.resource) for kind in KINDS))
    for kind in KINDS:
        yield from _kind(kind)


def _summary(resource: Resource) -> tuple[str, ...]:
    short = ", ".join(f"`{name}`" for name in resource.short_names)
    return f"[{resource.kind}](#{resource.kind.lower()})", short, _scope(resource), _writer(resource)


def _scope(resource: Resource) -> str:
    return "namespace" if resource.namespaced else "cluster"


def _writer(resource: Resource) -> str:
    if "create" not in resource.verbs:
        return "–"
    if not resource.managed_hint:
        return "users"
    return (
        "Lattice; users without an owner"
        if "create" in USER_VERBS_ON_MANAGED_KINDS.get(resource.id, ())
        else "Lattice"
    )


def _kind(kind: type[Kind]) -> Iterator[str]:
    resource, schema = kind.resource, structural_schema(kind)
    yield f"## {resource.kind}"
    yield schema.get("description", "")
    yield "\n".join(_facts(resource))
    if resource.columns:
        rows = (
            (c.name, f"`{c.path}`", "`-o wide`" if c.priority else "always", c.description)
            for c in resource.columns
        )
        yield f"### Columns of {resource.kind}"
        yield table(("column", "from", "shown", ""), rows)
    yield f"### Fields of {resource.kind}"
    listed = (field for field in fields(schema) if field.path not in WRITTEN_BY_HAND)
    rows = ((f"`{f.path}`", f.type, "yes" if f.required else "", f.description) for f in listed)
    yield table(("field", "type", "required", "meaning"), rows)


def _facts(resource: Resource) -> Iterator[str]:
    names = [resource.plural, resource.singular, *resource.short_names]
    aliases = [
        word
        for word, aliased in NAMES.resources_by_word.items()
        if aliased == resource and "." not in word and word not in names
    ]
    yield f"- Manifest: `apiVersion: {resource.api_version}`, `kind: {resource.kind}`"
    yield f"- Names: {', '.join(f'`{name}`' for name in names)}"
    if aliases:
        yield f"- In `lattice` also: {', '.join(f'`{word}`' for word in aliases)}"
    yield f"- Scope: {_scope(resource)}"
    yield f"- Verbs: {', '.join(resource.verbs)}"
    if resource.scale_path:
        yield f"- `scale` changes `{resource.scale_path}`"
    if resource.managed_hint:
        yield f"- Created by Lattice: {resource.managed_hint}"


def commands() -> Iterator[str]:
    yield "# Commands"
    yield "The output of `--help`."
    root = click.Context(
        cli, info_name="lattice", terminal_width=WIDTH, max_content_width=WIDTH, **cli.context_settings
    )
    yield "## lattice"
    yield fenced(cli.get_help(root))
    for section in SECTIONS.values():
        for name in section:
            command = cli.get_command(root, name)
            assert command is not None  # noqa: S101 - listed in the table that it is looked up in
            yield from _helped(
                command,
                click.Context(
                    command, info_name=name, parent=root, terminal_width=WIDTH, max_content_width=WIDTH
                ),
            )


def _helped(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}"
    yield fenced(command.get_help(context))
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from _helped(
                inner,
                click.Context(
                    inner, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH
                ),
            )


def settings_page() -> Iterator[str]:
    yield "# Settings"
    yield (
        "Settings of `lattice server` and `lattice up`. A flag overrides its environment variable, "
        "the variable overrides the file, and the file overrides the default."
    )
    yield (
        "`--config` or `LATTICE_CONFIG` names a YAML file with one `name: value` per line; "
        "an invalid setting is rejected with its line number. "
        "`lattice agent` reads a similar file with the names of its own flags: `--config` or `LATTICE_AGENT_CONFIG`. "
        "Relative paths start at the working directory of the command."
    )
    yield fenced(
        "store: etcd://10.0.0.1:2379,10.0.0.2:2379\nlisten: 0.0.0.0\nadvertise: lattice.example\nheartbeat: 5",
        "yaml",
    )
    yield (
        "`ETCD_HOST` and `ETCD_PORT` (2379) set the store of `lattice server` if neither `--store` nor `LATTICE_STORE` is set. "
        "`CONTROL_PLANE_API_URL` sets the server of `lattice agent` if neither `--server` nor `LATTICE_SERVER` is set, "
        "and the server of every other command if `LATTICE_ADDR` is not set."
    )
    for setting in settings.SETTINGS:
        yield f"## {setting.name}"
        yield setting.help
        flag, variables = f"`--{setting.name}`", ", ".join(f"`{name}`" for name in setting.env)
        yield f"- Flag: {flag}\n- Environment: {variables}\n- Default: {_default(setting.default)}"


def _default(value: object) -> str:
    if value is False:
        return "off"
    return f"`{value}`" if value != "" else "empty"


def metrics_page() -> Iterator[str]:
    yield "# Metrics"
    yield "`GET /metrics` returns the metrics in the text format of Prometheus to every authenticated user."
    collected = {metric.name: metric for metric in metrics.REGISTRY.collect()}
    for metric in sorted(collected.values(), key=metric_name):
        yield f"## {metric_name(metric)}"
        yield metric.documentation
        labels = ", ".join(f"`{label}`" for label in label_names()[metric.name])
        yield f"- Type: {metric.type}\n- Labels: {labels or 'none'}"


def metric_name(metric: Metric) -> str:
    """The scraped name of a metric; the client library omits the suffix of a counter."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def label_names() -> dict[str, tuple[str, ...]]:
    collectors = (collector for collector in vars(metrics).values() if hasattr(collector, "_labelnames"))
    return {collector.describe()[0].name: tuple(collector._labelnames) for collector in collectors}


def errors() -> Iterator[str]:
    yield "# Errors"
    yield (
        "An error says what is wrong, where, and how to fix it. The API returns a Kubernetes `Status` with this code and reason; "
        "a command that gets the error exits with this exit code. A wrong command line exits with 2."
    )
    listed = list(error_tree(LatticeError))
    yield table(("error", "HTTP status", "reason", "exit code"), (_error_row(error) for error in listed))
    for error in listed:
        yield f"## {error.__name__}"
        yield (
            f"- HTTP status: {error.status}\n- Reason: `{error.reason}`\n- Exit code: {error.exit_code}"
            f"\n- Means: {meaning(error)}"
        )
    yield (
        "`status.failureReason` of a workload, its events and the column REASON name the failure in one word. "
        "`status.failureMessage`, the same events and `lattice get workloads -o wide` have details, such as the exit code or the signal:"
    )
    rows = ((f"`{failure.word}`", failure.meaning, failure.then) for failure in FAILURES)
    yield table(("word", "means", "then"), rows)


def _error_row(error: type[LatticeError]) -> tuple[str, ...]:
    return (
        f"[{error.__name__}](#{error.__name__.lower()})",
        str(error.status),
        f"`{error.reason}`",
        str(error.exit_code),
    )


def error_tree(error: type[LatticeError]) -> Iterator[type[LatticeError]]:
    """The errors of errors.py, parents first; a store's subclass of an error is not listed."""
    if error.__module__ == LatticeError.__module__:
        yield error
        for child in sorted(
            error.__subclasses__(), key=lambda subclass: (subclass.status, subclass.__name__)
        ):
            yield from error_tree(child)


def meaning(error: type[LatticeError]) -> str:
    """The error's line in the tree of the docstring of errors.py."""
    import lattice.errors as errors_module

    for line in (errors_module.__doc__ or "").splitlines():
        words = line.strip("│├└─ ").split(maxsplit=1)
        if len(words) == 2 and words[0] == error.__name__:
            return words[1].removeprefix(str(error.status)).strip()
    return "an unexpected error; the log of the server has the details"


def events() -> Iterator[str]:
    yield "# Events"
    yield (
        "Lattice records its actions and their reasons as Kubernetes Events: `lattice events`, `lattice describe`, `kubectl get events`. "
        "The server keeps events for a week ([`--event-ttl`](settings.md#event-ttl)). "
        "An [AutomationRule](kinds.md#automationrule) also writes events, with its own reasons."
    )
    yield table(
        ("reason", "about", "type"),
        ((f"[{event.reason}](#{event.reason.lower()})", event.about, event.type) for event in EVENTS),
    )
    for event in EVENTS:
        yield f"## {event.reason}"
        yield "\n".join(_event_facts(event))


def _event_facts(event: Told) -> Iterator[str]:
    yield f"- About: {event.about}"
    yield f"- Type: {event.type}"
    yield f"- Means: {event.meaning}"
    if event.act:
        yield f"- To do: {event.act}"


def spec003() -> Iterator[str]:
    yield from _specification(
        SPEC003, "of the specification, the gaps that it lists and the advice that it gives"
    )


def spec004() -> Iterator[str]:
    yield from _specification(
        SPEC004, "of the checklist, what it calls partial, missing or a known gap included"
    )


def _specification(spec: Specification, subject: str) -> Iterator[str]:
    yield f"# Specification {spec.number}: {spec.title}"
    yield (
        f"The {len(spec.rows)} demands {subject}: what meets each, which test proves that, and a change of one line in the code that the test "
        f"notices. `tests/test_spec{spec.number}.py` looks the places up and makes the changes, one at a time in a copy of the package: "
        "a few of them with `make test`, all with `make prove`."
    )
    if count := sum(len(section.later) for section in spec.sections):
        yield f"{count} more come later, each listed where the specification asks for it, with what there is until then."
    for section in spec.sections:
        yield f"## {section.title}"
        if section.rows:
            yield table(
                ("demand", "met by", "proven by", "a slip that the test notices"),
                (_demand(row) for row in section.rows),
            )
        if section.later:
            yield table(("later", "until then"), ((row.item, row.instead) for row in section.later))


def _demand(row: Row) -> tuple[str, ...]:
    file, old, new = row.slip
    change = f"`{old.strip()}` → {f'`{new.strip()}`' if new else 'nothing'}"
    return row.item, f"`{row.module}:{row.symbol}`", f"`{row.test_id}`", f"`{file}`: {change}"


PAGES = {
    "kinds": kinds,
    "plugins": plugins,
    "commands": commands,
    "settings": settings_page,
    "metrics": metrics_page,
    "events": events,
    "errors": errors,
    "scenarios": scenarios,
    "spec-003": spec003,
    "spec-004": spec004,
}
