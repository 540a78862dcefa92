"""Who may import whom, and how big things may be: the map of the code, enforced."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "lattice"

MAY_IMPORT = {
    "errors": "",
    "clock": "",
    "metrics": "",
    "traces": "",
    "settings": "errors",
    "presence": "clock kinds",
    "kinds": "errors",
    "engine": "errors",
    "placement": "errors kinds engine",
    "scheduling": "errors kinds engine",
    "store": "errors kinds clock metrics",
    "providers": "errors kinds clock metrics",
    "controllers": "errors kinds engine placement scheduling store providers presence clock metrics traces settings",
    "wire": "errors kinds",
    "agent": "errors kinds wire clock metrics traces settings",
    "server": "errors kinds engine placement scheduling store wire presence clock metrics traces settings",
    "sim": "*",
    "cli": "*",
    "ui": "",
    "__main__": "cli",
}
PURE = {"kinds", "engine", "placement", "scheduling"}
IMPURE = {"asyncio", "time", "random", "os", "logging", "socket", "ssl", "threading", "subprocess"}
IMPURE |= {"apsw", "sqlite3", "grpc", "aiohttp", "structlog"}
ADAPTERS = {"memory", "sqlite", "etcd"}  # of the store: siblings that do not know one another

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS = 500, 60, 5
LARGER_FILES: dict[str, str] = {}
LONGER_FUNCTIONS: dict[str, str] = {}
MORE_PARAMETERS: dict[str, str] = {}

FILES = sorted(path for path in SOURCE.rglob("*.py") if "_pb2" not in path.name)


def area(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            if node.module == "lattice":
                yield from (f"lattice.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_map(path: Path) -> None:
    here = area(path)
    if here == "__init__":
        return
    allowed = MAY_IMPORT[here].split()
    for name in imports(path):
        there = name.split(".")[1] if name.startswith("lattice.") else ""
        ours = there in MAY_IMPORT
        assert not ours or there == here or allowed == ["*"] or there in allowed, (
            f"{here} may not import {there} ({name})"
        )
        if here in PURE:
            assert name.split(".")[0] not in IMPURE, f"{here} is pure and may not import {name}"


def test_only_its_command_knows_the_simulation() -> None:
    who = [
        str(path.relative_to(SOURCE))
        for path in FILES
        if any(name.startswith("lattice.sim") for name in imports(path))
    ]
    assert [name for name in who if not name.startswith("sim/")] == ["cli/sim.py"]


@pytest.mark.parametrize("path", sorted((SOURCE / "store").glob("*.py")), ids=lambda path: path.stem)
def test_store_adapters_do_not_know_one_another(path: Path) -> None:
    own = path.stem.split("_")[0]
    if own not in ADAPTERS or path.stem.endswith(("_pb2", "_pb2_grpc")):
        return
    for name in imports(path):
        if name.startswith("lattice.store."):
            other = name.split(".")[2].split("_")[0]
            assert other == own or other not in ADAPTERS, f"{path.stem} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text()
    name = str(path.relative_to(SOURCE))
    assert text.count("\n") <= MAX_FILE or name in LARGER_FILES, f"{name} has {text.count(chr(10))} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            where = f"{name}:{node.name}"
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= MAX_FUNCTION or where in LONGER_FUNCTIONS, f"{where} has {length} lines"
            count = len(
                [a for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in {"self", "cls"}]
            ) + len(node.args.kwonlyargs)
            if not node.decorator_list or not _is_command(node):
                assert count <= MAX_PARAMETERS or where in MORE_PARAMETERS, (
                    f"{where} takes {count} parameters"
                )


def _is_command(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """A command's parameters are its flags."""
    return any(
        "command" in ast.unparse(decorator) or "connected" in ast.unparse(decorator)
        for decorator in node.decorator_list
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_say_what_they_answer(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), f"{path} opens without a sentence"


@pytest.mark.parametrize("word", ["utils", "util", "helpers", "helper", "common", "misc", "manager"])
def test_no_junk_drawers(word: str) -> None:
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
        "lattice.kinds",
        "lattice.server",
    ]
    script = (
        "import sys; from lattice.cli.main import main; code = main(['--help'])\n"
        f"found = [name for name in {heavy} if name in sys.modules]\n"
        "assert not found, found; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
