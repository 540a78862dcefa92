"""Does every sample in the documents run, and print what the page says? Pages share one server, like the reader's, and tidy up after them."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.servers import Server, running_server
from tests.test_docs import FENCE, PAGES, ROOT, shown

RUN = ("lattice", "kubectl", "sed", "export", "printf", "kill", "cp", "rm", "python3")
LEFT_OUT = ("lattice up", "lattice server", "lattice agent")  # they do not end by themselves; the server of these tests is one
ASKS_NO_SERVER = re.compile(r"(export|printf|sed|cp|rm|lattice (simulate|crds|sim|completion))\b|lattice \w+ .*--world ")
ONLY_LOOKS = re.compile(
    r"(lattice|kubectl .*) ?\b(get|events|logs|top|cost|describe)\b"
)  # what is under way when it is asked for may be asked again
LONGEST = 20.0  # seconds until what is under way must be there
LEAVES_THINGS = ("README.md",)  # it runs last


class Step(NamedTuple):
    """One line that a reader types, what the page says it prints, and the exit code that the page shows next."""

    command: str
    lines: list[str]
    code: int | None

    def may_end_with(self, code: int) -> bool:
        """Where the page shows none it is 0, except that a question about the fleet ends with its answer."""
        is_answer = self.command.startswith(("lattice plan", "lattice whatif", "lattice optimise"))
        return code == self.code if self.code is not None else code in ((0, 1, 2) if is_answer else (0,))


def steps(path: Path) -> Iterator[Step]:
    for language, sample in FENCE.findall(path.read_text()):
        if language != "console":
            continue
        typed = [piece.splitlines() for piece in re.split(r"^\$ ", sample, flags=re.MULTILINE) if piece]
        for (command, *lines), after in zip(typed, [*typed[1:], [""]], strict=True):
            if command.split()[0] in RUN and not command.startswith(LEFT_OUT):
                yield Step(command, [line for line in lines if line.strip()], int(after[1]) if after[0] == "echo $?" else None)


def files(path: Path) -> Iterator[tuple[str, str]]:
    """Manifests that the page tells the reader to save: those that begin with their name."""
    for language, sample in FENCE.findall(path.read_text()):
        name = re.match(r"# ([\w-]+\.yaml)\n", sample)
        if language == "yaml" and name:
            yield name[1], sample


def same_words(line: str) -> str:
    """Without what differs from run to run: ages, and the width of columns."""
    words = " ".join(re.sub(r"\b(\d+[smhd])+$", "AGE", line.strip()).split())
    return re.sub(r"^(\d+[smhd])+ (?=Normal|Warning)", "AGE ", words)


def prints(step: Step, output: str) -> str:
    """The first line of the page that is not there, in the page's order; pages may leave lines out, and `…` is anything."""
    left = iter([same_words(line) for line in output.splitlines()])
    for line in step.lines:
        pattern = re.escape(same_words(line)).replace("…", ".*")
        if line.strip() != "…" and not any(re.fullmatch(pattern, each) for each in left):
            return line
    return ""


def wait_until_all_run(server: Server) -> None:
    """As a reader does, who types the next line when `make up` is done."""
    until = time.monotonic() + 60
    while set(server.lattice("get", "services", "-o", "jsonpath={.items[*].status.phase}").stdout.split()) != {"Running"}:
        assert time.monotonic() < until, server.lattice("get", "services,workloads").stdout
        time.sleep(0.2)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder like the reader's."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture(scope="module")
def server(reader: Path) -> Iterator[Server]:
    """The server that `make up` starts, once everything runs."""
    with running_server(reader / ".lattice", "--controllers", "*", "--providers", "local,docker=local") as running:
        assert running.lattice("apply", "-f", str(ROOT / "examples" / "quickstart")).returncode == 0
        wait_until_all_run(running)
        yield running


def ran(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("LATTICE_", "KUBECONFIG"))},
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "NO_COLOR": "1",
    }
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(["bash", "-c", command], cwd=folder, env=environment, text=True, timeout=60, check=False, **both)


def follow(path: Path, folder: Path) -> None:
    for name, text in files(path):
        (folder / name).write_text(text)
    for step in steps(path):
        if step.command.startswith("kubectl") and shutil.which("kubectl") is None:
            continue
        until = time.monotonic() + (LONGEST if ONLY_LOOKS.match(step.command) else 0)
        while True:
            done = ran(step.command, folder)
            missing = prints(step, done.stdout)
            if not missing or time.monotonic() > until:
                break
            time.sleep(0.2)
        assert step.may_end_with(done.returncode), f"$ {step.command}\nended with {done.returncode}:\n{done.stdout}"
        assert not missing, f"$ {step.command}\ndoes not print (here): {missing}\nbut:\n{done.stdout}"


WITH_SAMPLES = [path for path in PAGES if list(steps(path))]
OFFLINE = [path for path in WITH_SAMPLES if all(ASKS_NO_SERVER.match(step.command) for step in steps(path))]
ASKING = sorted(set(WITH_SAMPLES) - set(OFFLINE), key=lambda path: (shown(path) in LEAVES_THINGS, path))


@pytest.mark.parametrize("path", OFFLINE, ids=shown)
def test_samples_that_ask_no_server_run_as_shown(path: Path, reader: Path) -> None:
    follow(path, reader)


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize("path", ASKING, ids=shown)
def test_samples_run_as_shown(path: Path, reader: Path, server: Server) -> None:
    before = declared(server)
    follow(path, reader)
    if shown(path) not in LEAVES_THINGS:
        assert declared(server) == before, "the page leaves things behind that the next one does not know of"


def declared(server: Server) -> list[str]:
    kinds = "pools,nodeclasses,policies,services,cloudinfrastructures,staticinfrastructures,automationrules,namespaces"
    return sorted(server.lattice("get", kinds, "-A", "-o", "name").stdout.split())


def test_a_sample_that_prints_something_else_is_noticed() -> None:
    step = Step("lattice get pools", ["NAME   AGE", "north  …  3s", "…", "total  $0.00"], 0)
    assert prints(step, "NAME AGE\nlab x 1s\nnorth 17 % 9m\nrest\ntotal $0.00\n") == ""
    assert prints(step, "NAME AGE\nnorth 17 % 9m\ntotal $0.01\n") == "total  $0.00"
    assert prints(step, "north 17 % 9m\nNAME AGE\ntotal $0.00\n") == "north  …  3s"
