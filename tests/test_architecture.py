"""The code follows the map of docs/architecture.py: imports, purity, sizes, names of modules and classes."""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from docs import architecture
from docs.architecture import (
    ANYTHING,
    MAP,
    PURE,
    ROOT_MODULES,
    SOURCE,
    VALUES,
    folder_of,
    imports_of,
    module_name,
)

# The folders and root modules that the map limits to values.
PURE_MODULES = {*PURE, *(name for name, folder in ROOT_MODULES.items() if folder.may_touch == VALUES)}
# The modules that pure code may import; none of them reads a clock, files, sockets or the environment unless it is
# handed one. A new name needs the same promise.
PURE_IMPORTS = frozenset(
    """
    base64 binascii bisect collections contextlib copy csv dataclasses datetime decimal difflib enum fractions functools hashlib heapq
    highspy hmac importlib inspect itertools json math msgspec numpy operator re shlex types typing weakref yaml
    """.split()
) | {"urllib.parse"}
# Calls that read a clock, a file or a terminal, by the name of the function.
IMPURE_CALLS = frozenset({"open", "print", "input", "today", "utcnow", "getenv"})
# The modules beside the adapters in the folders of adapters; every other module there is one adapter.
BESIDE_ADAPTERS = {
    "store": {"cache", "commit_packing", "election", "protocol", "watch_feed"},
    "providers": {"protocol"},
    "agent.runtimes": {
        "exit_watch",
        "gpu_devices",
        "launcher",
        "log_files",
        "podman",
        "preflight",
        "router",
        "spawn",
    },
}
PLUGINS = (
    "placement.plugins.filters",
    "placement.plugins.scores",
    "scheduling.plugins.filters",
    "scheduling.plugins.scores",
)
# The imports between plugins. `eligibility` combines the filters that hold for a whole service; the domains of a
# spread depend on it.
IMPORTS_BETWEEN_PLUGINS = {
    "filters.eligibility": {
        "filters.affinity",
        "filters.available",
        "filters.capabilities",
        "filters.compliance",
        "filters.latency",
        "filters.pool_selector",
        "filters.region",
        "filters.residency",
    },
    "filters.overflow": {"filters.eligibility"},
    "filters.spread": {"filters.eligibility"},
    "scores.preferred_affinity": {"filters.affinity"},
    "scores.soft_spread": {"filters.eligibility", "filters.spread"},
}

MAX_MODULES = 15
MAY_HOLD_MORE = {"cli.commands", "kinds", *PLUGINS}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 600, 80, 6
MAX_TEST_NAME = 60

FILES = architecture.modules()


def relative(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def test_every_folder_has_a_row_in_the_map() -> None:
    folders = {".".join(path.parent.relative_to(SOURCE).parts) for path in FILES} - {""}
    assert folders == set(MAP)
    assert {path.stem for path in SOURCE.glob("*.py")} - {"__init__"} == set(ROOT_MODULES)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_are_absolute(path: Path) -> None:
    """The other rules read absolute imports only."""
    relative_imports = [
        node.lineno
        for node in ast.walk(architecture.parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert relative_imports == []


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_follow_the_map(path: Path) -> None:
    folder = folder_of(module_name(path))
    if not folder:
        return
    allowed = (MAP.get(folder) or ROOT_MODULES[folder]).may_import.split()
    if allowed == [ANYTHING]:
        return
    for name in imports_of(path):
        imported = folder_of(name)
        assert imported in {"", "errors", folder, *allowed}, f"{folder} may not import {imported} ({name})"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_pure_folders_touch_values_only(path: Path) -> None:
    if folder_of(module_name(path)) in PURE_MODULES:
        assert impurities(architecture.parsed(path)) == []


def impurities(tree: ast.Module) -> list[str]:
    """The imports and calls of a module with which it could touch more than values."""
    problems = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        problems += [
            f"line {node.lineno} imports {name}"
            for name in names
            if name.split(".")[0] != "lattice" and not {name, name.split(".")[0]} & PURE_IMPORTS
        ]
        if isinstance(node, ast.Call):
            function = node.func
            called = getattr(function, "id", "") or getattr(function, "attr", "")
            reads_clock = called == "now" and ast.unparse(function) in (
                "datetime.now",
                "datetime.datetime.now",
            )
            if called in IMPURE_CALLS or reads_clock:
                problems.append(f"line {node.lineno} calls {ast.unparse(function)}")
    return problems


@pytest.mark.parametrize(
    "code",
    [
        "import os",
        "import os.path as path",
        "from pathlib import Path",
        "import urllib.request",
        "from urllib import request",
        "from uuid import uuid4",
        "text = open('file').read()",
        "from datetime import datetime\nnow = datetime.now()",
        "from datetime import date\nday = date.today()",
    ],
)
def test_impure_code_is_detected(code: str) -> None:
    assert len(impurities(ast.parse(code))) == 1


def test_code_over_values_is_pure() -> None:
    code = (
        "from urllib.parse import quote\nimport numpy as np\nfrom lattice.errors import Invalid\nself.now()"
    )
    assert impurities(ast.parse(code)) == []


def test_every_allowed_import_is_used() -> None:
    graph = architecture.edges()
    allowed = {
        (name, each)
        for name, folder in MAP.items()
        if folder.may_import != ANYTHING
        for each in folder.may_import.split()
    }
    assert {(name, each) for name, each in allowed if each not in graph[name]} == set()


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that import one another, found by removing nodes without imports until none is left."""
    left = {name: set(targets) & set(graph) for name, targets in graph.items()}
    while done := [name for name, targets in left.items() if not targets]:
        for name in done:
            del left[name]
        for targets in left.values():
            targets.difference_update(done)
    return [sorted(left)] if left else []


def test_cycles_are_detected() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["a", "b", "c"]]


def test_no_folder_imports_its_importer() -> None:
    assert cycles({name: targets for name, targets in architecture.edges().items() if name}) == []


def test_no_module_imports_its_importer() -> None:
    graph = {module_name(path): set(imports_of(path)) - {module_name(path)} for path in FILES}
    assert cycles(graph) == []


def test_only_its_command_imports_the_simulation() -> None:
    importing = {
        relative(path) for path in FILES if any(name.split(".")[0] == "sim" for name in imports_of(path))
    }
    assert {name for name in importing if not name.startswith("sim/")} == {"cli/commands/sim.py"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_adapters_do_not_import_one_another(path: Path) -> None:
    own = module_name(path)
    for folder, others_in_folder in BESIDE_ADAPTERS.items():
        siblings = adapters_in(folder) - {f"{folder}.{name}" for name in others_in_folder}
        mine = {each for each in siblings if own == each or own.startswith(f"{each}.")}
        if not mine:
            continue
        for name in imports_of(path):
            others = {each for each in siblings - mine if name == each or name.startswith(f"{each}.")}
            assert not others, f"{own} imports {name}"


def adapters_in(folder: str) -> set[str]:
    """The modules and folders directly in a folder."""
    names = {module_name(path) for path in FILES} - {folder}
    return {
        ".".join(name.split(".")[: folder.count(".") + 2]) for name in names if name.startswith(f"{folder}.")
    }


def test_modules_beside_adapters_exist() -> None:
    for folder, names in BESIDE_ADAPTERS.items():
        assert {f"{folder}.{name}" for name in names} < adapters_in(folder)


def test_plugins_do_not_import_one_another() -> None:
    imports: dict[str, set[str]] = {}
    for path in FILES:
        own = module_name(path)
        if path.name == "__init__.py" or folder_of(own) not in PLUGINS:
            continue
        plugins = {name for name in imports_of(path) if folder_of(name) in PLUGINS and name != own}
        if plugins:
            short = {".".join(name.split(".")[-2:]) for name in plugins}
            imports[".".join(own.split(".")[-2:])] = short
    assert imports == IMPORTS_BETWEEN_PLUGINS


def test_folders_stay_small() -> None:
    counts = Counter(folder_of(module_name(path)) for path in FILES if path.name != "__init__.py")
    assert {name: n for name, n in counts.items() if n > MAX_MODULES and name not in MAY_HOLD_MORE} == {}


@pytest.mark.parametrize("name", sorted(MAP))
def test_a_folder_quotes_its_row(name: str) -> None:
    text = (SOURCE.joinpath(*name.split(".")) / "__init__.py").read_text()
    docstring = ast.get_docstring(ast.parse(text)) or ""
    expected = architecture.docstring_of(name, architecture.importers()[name])
    assert docstring.split() == expected.split(), "run `python -m docs.architecture`"


def test_public_class_names_are_unique_inside_a_package() -> None:
    homes: dict[tuple[str, str], set[str]] = defaultdict(set)
    for path in FILES:
        package = path.relative_to(SOURCE).parts[0]
        for node in architecture.parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[package, node.name].add(relative(path))
    assert {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1} == {}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    name = relative(path)
    assert text.count("\n") <= MAX_FILE_LINES, f"{name} has {text.count(chr(10))} lines"
    for node in ast.walk(architecture.parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION_LINES, f"{name}:{node.name} has {length} lines"
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = len([each for each in parameters if each.arg not in {"self", "cls"}])
            assert count <= MAX_PARAMETERS or is_command(node), f"{name}:{node.name} takes {count} parameters"


def is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command's parameters are its flags."""
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any("command" in text or "connected" in text for text in decorators)


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_every_module_has_a_docstring(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} opens without a sentence"


def test_names_of_tests_fit_a_report_line() -> None:
    too_long = []
    for path in Path(__file__).parent.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and node.name.startswith("test_") and len(node.name) >= MAX_TEST_NAME:
                too_long.append(f"{path.name}: {node.name}")
    assert too_long == []


@pytest.mark.parametrize("word", ["utils", "util", "helpers", "helper", "common", "misc", "manager"])
def test_no_utils_modules(word: str) -> None:
    assert [str(path) for path in FILES if path.stem == word] == []


def test_help_starts_without_the_heavy_libraries() -> None:
    heavy = [
        "opentelemetry",
        "aiohttp",
        "grpc",
        "rich",
        "structlog",
        "cryptography",
        "apsw",
        "yaml",
        "msgspec",
    ]
    heavy += ["lattice.kinds", "lattice.server"]
    script = (
        "import sys; from lattice.cli.main import main; code = main(['--help'])\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "assert not found, found; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
