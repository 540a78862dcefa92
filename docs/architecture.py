"""The map of the code: what each folder of src/lattice holds, may import and may touch.

One table: `tests/test_architecture.py` holds the code to it, every folder's `__init__` quotes its row, and `docs/architecture.md` is made from it.
"""

import ast
import functools
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lattice"
VALUES = "values only: no clock, randomness, files, sockets, threads or logs"
ANYTHING = "*"
MAX_LINE = 106


class Folder(NamedTuple):
    """One row of the map. `may_import` names folders and root modules of lattice; a folder may always import `errors` and itself."""

    holds: str
    may_import: str
    may_touch: str


MAP: dict[str, Folder] = {
    "kinds": Folder("One module per API kind; `KINDS` is the list of all.", "kinds.meta", VALUES),
    "kinds.meta": Folder(
        "What every kind is made of: base classes, schema and validation, quantities, selectors, JSON, YAML and JSONPath codecs.",
        "",
        VALUES,
    ),
    "engine": Folder(
        "Filter, score and pick over columns of candidates; knows no kind and no plugin.", "", VALUES
    ),
    "lifecycle": Folder(
        "State machines that controllers carry out: they decide the next action for a workload, a node, a rollout or the machines of a cluster.",
        "kinds kinds.meta",
        VALUES,
    ),
    "diagnosis": Folder(
        "Why a service, a workload or a machine does not run, and what is wrong in the fleet, from stored objects.",
        "kinds kinds.meta lifecycle placement.inputs",
        VALUES,
    ),
    "placement": Folder(
        "Choosing pools, clusters and machines for the replicas of services; `queries` answers queries about them.",
        "",
        VALUES,
    ),
    "placement.inputs": Folder(
        "Figures that placement reads: price book, price catalog, latencies, ledger arithmetic.",
        "kinds kinds.meta",
        VALUES,
    ),
    "placement.affinity": Folder(
        "Affinity between services, resolved to the services and workloads that a term matches.",
        "kinds kinds.meta lifecycle placement.inputs",
        VALUES,
    ),
    "placement.model": Folder(
        "The snapshot of the fleet; resolved demands; offers; the trial fleet, on which placement tries changes and undoes them; quotes and costs.",
        "kinds kinds.meta engine lifecycle placement.affinity placement.inputs",
        VALUES,
    ),
    "placement.feed": Folder(
        "The stored objects that placement reads, kept up to date by feeds of changes, and the world built from them.",
        "kinds kinds.meta placement.inputs placement.model",
        VALUES,
    ),
    "placement.plugins": Folder(
        "What all placement plugins share: how a plugin reads the fleet, rejection reasons.",
        "kinds.meta engine placement.model",
        VALUES,
    ),
    "placement.plugins.filters": Folder(
        "One module per filter plugin of placement.",
        "kinds kinds.meta engine placement.affinity placement.model placement.plugins",
        VALUES,
    ),
    "placement.plugins.scores": Folder(
        "One module per score plugin of placement.",
        "engine placement.model placement.plugins placement.plugins.filters",
        VALUES,
    ),
    "placement.greedy": Folder(
        "The placement algorithm: one service, all services, commit stages, scale-down, orphaned replicas.",
        "kinds kinds.meta engine lifecycle placement.affinity placement.inputs placement.model placement.plugins.filters "
        "placement.plugins.scores",
        VALUES,
    ),
    "placement.explain": Folder(
        "Why a service is not placed: blockers, verdict, required infrastructure.",
        "kinds kinds.meta engine placement.greedy placement.model placement.plugins placement.plugins.filters",
        VALUES,
    ),
    "placement.status": Folder(
        "Status and conditions of services, pools, infrastructure and clusters, computed from a fleet.",
        "kinds kinds.meta engine lifecycle placement.inputs placement.model placement.greedy placement.explain placement.plugins placement.plugins.filters",
        VALUES,
    ),
    "placement.plan": Folder(
        "What a change of manifests or a lost pool does to the fleet: plan and what-if.",
        "kinds kinds.meta lifecycle placement.greedy placement.inputs placement.model placement.plugins.filters placement.status",
        VALUES,
    ),
    "placement.fit": Folder(
        "The smallest changes that would make a service fit, each tried on a trial fleet.",
        "kinds kinds.meta engine placement.explain placement.greedy placement.inputs placement.model placement.plugins placement.plugins.filters",
        VALUES,
    ),
    "placement.optimise": Folder(
        "The cheapest whole fleet: linear program, solver, optimality gap, applying the solution.",
        "engine placement.greedy placement.model placement.plan placement.plugins.filters",
        VALUES,
    ),
    "placement.queries": Folder(
        "The entry point of server and CLI for plan, why, fit, what-if, cost and optimise: query in, document out.",
        "kinds.meta engine placement.explain placement.fit placement.greedy placement.inputs placement.model placement.optimise placement.plan"
        " placement.plugins placement.plugins.filters placement.status",
        VALUES,
    ),
    "scheduling": Folder(
        "Choose nodes for workloads. Python imports the module of a name when the name is first used.",
        "engine scheduling.cycle scheduling.preemption scheduling.table",
        VALUES,
    ),
    "scheduling.table": Folder(
        "The node table: resources, GPUs, ports, topology, the index of placed workloads, the GPU demand learned from them.",
        "kinds kinds.meta engine",
        VALUES,
    ),
    "scheduling.plugins": Folder(
        "What all scheduling plugins share: rejection reasons and cluster events.",
        "engine scheduling.table",
        VALUES,
    ),
    "scheduling.plugins.filters": Folder(
        "One module per filter plugin of the scheduler.",
        "kinds engine scheduling.plugins scheduling.table",
        VALUES,
    ),
    "scheduling.plugins.scores": Folder(
        "One module per score plugin of the scheduler.", "kinds engine scheduling.table", VALUES
    ),
    "scheduling.preemption": Folder(
        "Choose the workloads to evict so that a workload of higher priority fits.",
        "kinds engine scheduling.plugins scheduling.plugins.filters scheduling.table",
        VALUES,
    ),
    "scheduling.cycle": Folder(
        "The scheduling queue and cycle, gangs, reservations, binder, decision records, the scheduler cache.",
        "kinds kinds.meta engine lifecycle scheduling.plugins scheduling.plugins.filters scheduling.plugins.scores scheduling.preemption"
        " scheduling.table",
        VALUES,
    ),
    "scheduling.offline": Folder(
        "`lattice simulate`: scheduling a list of workloads onto a list of nodes without a server.",
        "kinds engine scheduling.cycle scheduling.plugins scheduling.preemption scheduling.table",
        VALUES,
    ),
    "store": Folder(
        "The store protocol, the in-memory store, the cache (informer), leader election, the watch feed, the packing of commits.",
        "process_tuning clock",
        "the clock",
    ),
    "store.sqlite": Folder(
        "The store on one SQLite file, written by one thread.",
        "clock store",
        "its file, its threads, the clock",
    ),
    "store.etcd": Folder("The store on etcd.", "clock store", "connections to etcd, the clock"),
    "providers": Folder(
        "Machines made and removed: provider protocol, local processes, a fake for tests.",
        "kinds clock",
        "processes and files of machines",
    ),
    "wire": Folder(
        "Messages between agents and servers, and the connection that carries them.", "", "connections"
    ),
    "controllers": Folder(
        "`controller_set`: all controllers of one leader's term, wired together.",
        "controllers.automation controllers.garbage controllers.nodes controllers.runtime controllers.scheduler controllers.services"
        " kinds.meta lifecycle placement.feed providers scheduling.cycle scheduling.table settings",
        "the store through controllers.runtime.context, fenced by the term",
    ),
    "controllers.runtime": Folder(
        "The reconcile loop, work queue, controller context, object writes, event recorder.",
        "kinds kinds.meta clock metrics tracing presence store scheduling.cycle",
        "the store (every write fenced), the clock, a background thread",
    ),
    "controllers.services": Folder(
        "Turn services into placements, ledger entries, clusters, machines, replicas and agreements; report status.",
        "kinds kinds.meta clock metrics diagnosis lifecycle placement.feed placement.greedy placement.inputs placement.model placement.status providers store"
        " controllers.automation controllers.garbage controllers.runtime",
        "the store through controllers.runtime.context, providers",
    ),
    "controllers.scheduler": Folder(
        "The scheduler loop and the durable side of binding.",
        "kinds kinds.meta engine lifecycle metrics tracing store scheduling.cycle scheduling.plugins scheduling.preemption scheduling.table"
        " controllers.runtime",
        "the store through controllers.runtime.context",
    ),
    "controllers.nodes": Folder(
        "Node health, eviction, workload lifecycle, drift.",
        "kinds kinds.meta clock metrics diagnosis lifecycle presence store scheduling.table controllers.runtime controllers.services",
        "the store through controllers.runtime.context, heartbeats",
    ),
    "controllers.garbage": Folder(
        "Delete dependents of deleted owners, content of deleted namespaces, expired events and join tokens.",
        "kinds kinds.meta clock metrics store controllers.runtime",
        "the store through controllers.runtime.context",
    ),
    "controllers.automation": Folder(
        "Automation rules and their webhooks.",
        "kinds kinds.meta lifecycle placement.inputs presence store controllers.runtime",
        "the store through controllers.runtime.context, outgoing HTTP",
    ),
    "server": Folder(
        "`app`: the HTTP server, which passes each request to the folder that answers its path.",
        "kinds kinds.meta metrics tracing server.access server.agents server.discovery server.fleet_queries server.http server.live"
        " server.requests server.resources server.ui_backend",
        "HTTP connections",
    ),
    "server.apply": Folder("Patches, server-side apply, managed fields.", "", VALUES),
    "server.requests": Folder(
        "A request and its reply: options, bodies, Kubernetes protobuf, Status errors, the catalog of served kinds.",
        "kinds.meta server.apply store",
        "values, and the store's types",
    ),
    "server.access": Folder(
        "Authentication, authorization, access reviews, the certificate authority, limits on attempts.",
        "kinds.meta clock server.requests store",
        "the store, keys and certificates",
    ),
    "server.http": Folder(
        "HTTP responses: headers, conditional requests, compression, watches over WebSocket.",
        "server.requests",
        "HTTP connections",
    ),
    "server.event_versions": Folder(
        "Events of events.k8s.io/v1: a view of the store in which the core events have the newer form.",
        "kinds kinds.meta store",
        "the store",
    ),
    "server.resources": Folder(
        "The REST verbs: routes, get, list, watch, write, admission, sub-resources, tables.",
        "kinds kinds.meta clock tracing lifecycle server.access server.apply server.event_versions server.requests store",
        "the store",
    ),
    "server.discovery": Folder(
        "Discovery, OpenAPI v2 and v3, CustomResourceDefinitions.",
        "kinds kinds.meta server.fleet_queries server.requests server.resources",
        "values only",
    ),
    "server.fleet_queries": Folder(
        "The query process beside the server: schema, protocol, snapshot feed, dry run, apply of a plan.",
        "process_tuning kinds kinds.meta clock metrics placement.feed placement.inputs placement.model placement.queries server.access server.requests server.resources store",
        "a child process, the store through server.resources",
    ),
    "server.agents": Folder(
        "Agent sessions on the leader: codec, registration, join, log requests, the proxy to the leader.",
        "kinds kinds.meta clock metrics tracing lifecycle presence server.access server.requests store wire",
        "connections to agents, heartbeats, the store",
    ),
    "server.live": Folder(
        "What only the leader knows: usage, logs, spending, problems and diagnoses.",
        "kinds kinds.meta clock diagnosis placement.inputs presence server.access server.agents server.requests server.resources store",
        "the store, heartbeats",
    ),
    "server.ui_backend": Folder(
        "Pages, sign-in and the event stream of the web page.",
        "kinds kinds.meta clock lifecycle server.access server.live server.requests server.resources store",
        "HTTP connections, the store",
    ),
    "server.grpc": Folder(
        "The gRPC listener for agents and the control API.",
        "kinds kinds.meta server.access server.agents server.live server.requests server.resources store wire",
        "gRPC connections",
    ),
    "app": Folder(
        "The composition root: builds every object of a server and hands it to the others.",
        "process_tuning kinds kinds.meta clock metrics tracing settings presence manifest_files lifecycle scheduling.cycle scheduling.table providers store"
        " store.sqlite store.etcd controllers controllers.runtime controllers.garbage controllers.automation server server.access server.agents"
        " server.discovery server.fleet_queries server.grpc server.live server.requests server.resources server.ui_backend ui agent.runtimes",
        "files, sockets, signals",
    ),
    "agent": Folder(
        "One node: the session with the leader, the executor of assignments, identity, state file.",
        "kinds clock tracing wire agent.host",
        "the connection to the server, its folder",
    ),
    "agent.host": Folder(
        "Services of the machine: cgroups, watchdog, probes, usage, and the protocol of runtimes.",
        "kinds clock wire",
        "the host",
    ),
    "agent.runtimes": Folder(
        "How a workload runs: processes, containers, a fake.",
        "kinds kinds.meta clock agent.host",
        "processes and containers of the host",
    ),
    "cli": Folder(
        "`main`: the table of commands and how errors end them.", "cli.output", "standard streams, exit code"
    ),
    "cli.commands": Folder(
        "One module per command.",
        "kinds kinds.meta clock tracing settings agent agent.host agent.runtimes app cli.client cli.fleet cli.output scheduling.offline"
        " server.access server.discovery server.requests server.resources sim sim.planted_bugs",
        "standard streams, files that the user names",
    ),
    "cli.client": Folder(
        "Talking to a server: HTTP, configuration, names of kinds, manifests, watches.",
        "kinds kinds.meta manifest_files cli.output",
        "HTTP connections, files that the user names",
    ),
    "cli.fleet": Folder(
        "Fleet queries from the command line, with a server or offline.",
        "process_tuning kinds kinds.meta clock manifest_files placement.feed placement.inputs placement.model placement.queries scheduling.cycle server.fleet_queries"
        " server.requests server.resources cli.client cli.output",
        "HTTP connections, files that the user names",
    ),
    "cli.output": Folder(
        "Tables, formats and messages on the terminal.",
        "kinds kinds.meta engine scheduling.offline",
        "standard streams",
    ),
    "sim": Folder(
        "Run the whole control plane in virtual time under faults, for many seeds, and report.",
        ANYTHING,
        "processes of its own",
    ),
    "sim.world": Folder(
        "The simulated world: event loop, clocks, network, store, servers, machines, users, faults.",
        ANYTHING,
        "virtual time",
    ),
    "sim.invariants": Folder(
        "The invariants that must hold in every recorded history, by number, and their checker.",
        ANYTHING,
        "a recorded history",
    ),
    "sim.planted_bugs": Folder(
        "Bugs planted in the real code that the invariants must find.", ANYTHING, "functions of the real code"
    ),
    "sim.scenarios": Folder(
        "Scenario scripts: commands, and the output of Lattice.", ANYTHING, "virtual time"
    ),
    "ui": Folder("Static files of the web page.", "", "nothing"),
}
ROOT_MODULES: dict[str, Folder] = {
    "errors": Folder("Every error class with its HTTP status and exit code.", "", VALUES),
    "clock": Folder("The clock that is injected everywhere.", "", "the clock"),
    "metrics": Folder("Every Prometheus metric.", "", "the metrics registry"),
    "tracing": Folder("Spans, where an OpenTelemetry SDK is installed.", "", "the tracer"),
    "settings": Folder("Every setting of a server with its default.", "", VALUES),
    "process_tuning": Folder(
        "Tuning of the garbage collector and malloc for a large, long-lived heap.", "", "the process"
    ),
    "presence": Folder("Heartbeats of nodes, in the leader's memory.", "clock kinds", "the clock"),
    "manifest_files": Folder(
        "Manifests read from files, folders, standard input and URLs.", "kinds.meta", "files, HTTP"
    ),
    "__main__": Folder("The program `lattice`.", "cli", "the process"),
}
PURE = tuple(name for name, folder in MAP.items() if folder.may_touch == VALUES)


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if "_pb2" not in path.name)


def module_name(path: Path) -> str:
    """Dotted, below lattice; a package is named like its folder."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module: str) -> str:
    """The folder that a module is in, or the module itself if it lies in the root."""
    if (SOURCE.joinpath(*module.split("."))).is_dir():
        return module
    return module.rpartition(".")[0] or module


@functools.cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module; every reader shares one."""
    return ast.parse(path.read_text())


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Dotted names below lattice of everything that a module imports, also inside functions and for types only."""
    return tuple(_imports_in(parsed(path)))


def _imports_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                alias.name.removeprefix("lattice.")
                for alias in node.names
                if alias.name.startswith("lattice.")
            )
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lattice":
            base = (node.module or "").removeprefix("lattice").removeprefix(".")
            for alias in node.names:
                name = f"{base}.{alias.name}".removeprefix(".")
                yield name if is_module(name) else base


def is_module(name: str) -> bool:
    path = SOURCE.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


@functools.cache
def importers() -> dict[str, set[str]]:
    """The folders that import a folder, by the code."""
    importing_folders: dict[str, set[str]] = {name: set() for name in MAP}
    for path in modules():
        importing = folder_of(module_name(path))
        for name in imports_of(path):
            imported = folder_of(name)
            if imported in importing_folders and imported != importing:
                importing_folders[imported].add(importing)
    return importing_folders


def docstring_of(name: str, imported_by: set[str]) -> str:
    """The docstring of a folder's `__init__`."""
    folder = MAP[name]
    may_import = (
        "everything" if folder.may_import == ANYTHING else " ".join(["errors", *folder.may_import.split()])
    )
    by = " ".join(sorted(imported_by)) or "nothing"
    return (
        f"{folder.holds}\n\nImported by: {by}.\nMay import: {may_import}.\nMay touch: {folder.may_touch}.\n"
    )


def edges() -> dict[str, set[str]]:
    """The folders and root modules that a folder or root module imports, by the code."""
    graph: dict[str, set[str]] = {}
    for path in modules():
        importing = folder_of(module_name(path))
        imported = {folder_of(name) for name in imports_of(path)}
        graph.setdefault(importing, set()).update(imported - {importing, ""})
    return graph


def page() -> Iterator[str]:
    """`docs/architecture.md`: the map as a table, and the import graph as it is in the code."""
    graph = edges()
    yield "# Architecture"
    yield (
        "Lattice is one Python package. Deciding is pure: `kinds`, `engine`, `lifecycle`, `placement` and `scheduling` see values and"
        " return values. `store`, `providers`, `controllers`, `server` and `agent` act on them. `app` builds the objects of a server and"
        " hands them to each other; `cli` is a client. [Concepts](concepts.md) follows one service through these folders."
    )
    yield "## Imports between packages"
    yield "An arrow means: imports. `errors`, `clock`, `metrics`, `tracing`, `settings` and `process_tuning` are left out, and `sim`, which may import everything."
    left_out = {
        "errors",
        "clock",
        "metrics",
        "tracing",
        "settings",
        "process_tuning",
        "sim",
        "ui",
        "__main__",
        "",
    }
    pairs = {(top(source), top(target)) for source, targets in graph.items() for target in targets}
    lines = [f"    {a} --> {b}" for a, b in sorted(pairs) if a != b and not {a, b} & left_out]
    yield "\n".join(["```mermaid", "graph TD", *lines, "```"])
    yield "## Folders"
    rows = ["| folder | holds | imports | may touch |", "| --- | --- | --- | --- |"]
    for name, folder in MAP.items():
        imported = ", ".join(f"`{target}`" for target in sorted(graph.get(name, ()))) or "nothing"
        imported = "everything" if folder.may_import == ANYTHING else imported
        rows.append(f"| `{name.replace('.', '/')}/` | {folder.holds} | {imported} | {folder.may_touch} |")
    yield "\n".join(rows)
    yield "## Root modules"
    rows = ["| module | holds | may touch |", "| --- | --- | --- |"]
    yield "\n".join(
        [
            *rows,
            *(f"| `{name}` | {folder.holds} | {folder.may_touch} |" for name, folder in ROOT_MODULES.items()),
        ]
    )


def top(name: str) -> str:
    return name.partition(".")[0]


def write_docstrings() -> list[Path]:
    """Make every folder's `__init__` quote its row; the files that changed."""
    imported_by, changed = importers(), []
    for name in MAP:
        path = SOURCE.joinpath(*name.split(".")) / "__init__.py"
        text = path.read_text()
        tree = ast.parse(text)
        code = text.split("\n")[
            (tree.body[0].end_lineno or 0) if ast.get_docstring(tree) is not None else 0 :
        ]
        remaining_code = "\n".join(code).strip("\n")
        paragraphs = docstring_of(name, imported_by[name]).split("\n")
        wrapped = "\n".join(textwrap.fill(line, MAX_LINE, break_on_hyphens=False) for line in paragraphs)
        written = f'"""{wrapped}"""\n' + (f"\n{remaining_code}\n" if remaining_code else "")
        if written != text:
            path.write_text(written)
            changed.append(path)
    return changed


if __name__ == "__main__":
    sys.stdout.writelines(f"{path.relative_to(ROOT)} written\n" for path in write_docstrings())
