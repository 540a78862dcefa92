"""The code follows the map of docs/architecture.py: imports, purity, sizes, names of modules and classes."""

import ast
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from docs import architecture
from docs.architecture import ANYTHING, MAP, PURE, ROOT_MODULES, SOURCE, folder_of, imports_of, module_name

IMPURE = {"asyncio", "time", "random", "os", "logging", "socket", "ssl", "threading", "subprocess"}
IMPURE |= {"apsw", "sqlite3", "grpc", "aiohttp", "structlog"}
PURE_PACKAGES = tuple(name for name in PURE if not name.startswith("server"))
ADAPTERS = {
    "store": ("memory", "sqlite", "etcd"),
    "providers": ("fake", "local"),
    "agent.runtimes": ("container", "fake", "process"),
}
PLUGINS = (
    "placement.plugins.filters",
    "placement.plugins.scores",
    "scheduling.plugins.filters",
    "scheduling.plugins.scores",
)
SHARED_BY_PLUGINS = {
    "eligibility",
    "spread",
}  # what several placement plugins read: the domains of a spread, and which offers count

MAX_MODULES = 15
MAY_HOLD_MORE = {"cli.commands", "kinds", *PLUGINS}
MAX_FILE_LINES, MAX_FUNCTION_LINES, MAX_PARAMETERS = 600, 80, 6

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
    if not folder_of(module_name(path)).startswith(PURE_PACKAGES):
        return
    for node in ast.walk(architecture.parsed(path)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {name.split(".")[0] for name in names} & IMPURE, (
            f"{relative(path)} is pure and imports {names}"
        )


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
    graph = {
        name: targets for name, targets in architecture.edges().items() if name and not name.startswith("sim")
    }
    assert cycles(graph) == []


def test_no_module_imports_its_importer() -> None:
    graph = {
        module_name(path): set(imports_of(path)) - {module_name(path)}
        for path in FILES
        if path.name != "__init__.py"
    }
    assert cycles(graph) == []


def test_only_its_command_imports_the_simulation() -> None:
    importing = {
        relative(path) for path in FILES if any(name.split(".")[0] == "sim" for name in imports_of(path))
    }
    assert {name for name in importing if not name.startswith("sim/")} == {"cli/commands/sim.py"}


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_adapters_do_not_import_one_another(path: Path) -> None:
    own = module_name(path)
    for folder, adapters in ADAPTERS.items():
        siblings = {f"{folder}.{each}" for each in adapters}
        mine = {each for each in siblings if own == each or own.startswith(f"{each}.")}
        if not mine:
            continue
        for name in imports_of(path):
            others = {each for each in siblings - mine if name == each or name.startswith(f"{each}.")}
            assert not others, f"{own} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_plugins_do_not_import_one_another(path: Path) -> None:
    own = module_name(path)
    for folder in PLUGINS:
        if own.startswith(f"{folder}.") and own.rpartition(".")[2] not in SHARED_BY_PLUGINS:
            plugins = [name for name in imports_of(path) if name.startswith(f"{folder}.")]
            assert {name.rpartition(".")[2] for name in plugins} <= SHARED_BY_PLUGINS, (
                f"{own} imports {plugins}"
            )


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
