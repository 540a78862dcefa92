"""Every sample in the documents runs and prints what the page shows. The pages share one server and clean up
after themselves."""

import importlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from build.doc_samples import Sample, Step, difference, files, samples, steps, typed
from build.etcd_server import free_port
from build.kubectl_versions import find_kubectls
from build.preloaded_cli import Command, PreloadedCli, preloaded_cli
from build.servers import Server, running_server
from build.wire import CONFIGMAPS, SERVICES, Wire, configmap

from lattice.cli.main import COMMANDS
from tests.test_docs import FENCE, PAGES, ROOT, shown

BIN = Path(sys.executable).parent
ASKS_NO_SERVER = re.compile(
    r"(export|printf|sed|cp|rm|lattice (simulate|crds|sim|completion))\b|lattice \w+ .*--world "
)
ONLY_LOOKS = re.compile(
    r"(lattice|kubectl .*) ?\b(get|events|logs|top|cost|describe)\b"
)  # what is under way when it is asked for may be asked again
PLAIN = re.compile(r"lattice ((?!agent)[^|;&$<>`*\n]+?)(?: > (\S+))?")  # nothing that only a shell can do
STAYS = "lattice agent --server"  # until the page ends
FOREIGN = ("kubectl", "curl")  # a reader may do without; CI may not
LONGEST = 20.0  # seconds until what is under way must be there
LEAVES_THINGS = ("docs/tour.md",)  # it runs last
GUIDES = ROOT / "docs" / "guides"

# Page and how the sample, or the command in a console, begins -> the test that runs it instead.
RUN_BY = {
    ("docs/architecture.md", "graph TD"): "tests/test_docs.py::test_reference_is_up_to_date",
    ("README.md", "make up"): "tests/test_samples.py::test_first_start_prints_the_readme_sample",
    (
        "README.md",
        "Lattice is up at",
    ): "tests/test_samples.py::test_first_start_prints_the_readme_sample",
    (
        "README.md",
        "lattice server --store",
    ): "tests/test_documented_deployments.py::test_servers_and_agents_start_as_documented",
    (
        "docs/guides/ha.md",
        "lattice server --store",
    ): "tests/test_documented_deployments.py::test_servers_and_agents_start_as_documented",
    (
        "docs/guides/nodes.md",
        "lattice agent --server https://lattice",
    ): "tests/test_documented_deployments.py::test_servers_and_agents_start_as_documented",
    (
        "docs/guides/latency.md",
        "spec:",
    ): "tests/test_samples.py::test_unsaved_manifests_are_parts_of_the_examples",
    (
        "docs/guides/onprem.md",
        "apiVersion:",
    ): "tests/test_samples.py::test_unsaved_manifests_are_parts_of_the_examples",
    ("docs/reference/commands.md", "Usage: "): "tests/test_docs.py::test_reference_is_up_to_date",
    (
        "docs/reference/scenarios.md",
        "# What ends by itself",
    ): "tests/sim/test_scenarios.py::test_scenario_output_is_unchanged",
    ("docs/reference/settings.md", "store: "): "tests/test_deploy.py::test_settings_in_the_reference_exist",
    ("docs/guides/backup.md", "cp backup.db"): "tests/test_samples.py::test_backup_is_restored_as_shown",
    (
        "docs/tutorial.md",
        "$ pip install",
    ): "tests/test_wheel.py::test_lattice_up_runs_the_quickstart_from_the_wheel",
    (
        "docs/guides/kubectl.md",
        "# lattice-fields.yaml",
    ): "tests/test_samples.py::test_kustomize_reaches_the_fields_of_a_service",
    (
        "deploy/etcd/README.md",
        "deploy/etcd/try.sh",
    ): "tests/test_deploy.py::test_three_servers_elect_a_new_leader_after_a_kill",
    (
        "deploy/etcd/README.md",
        "$ curl -sk",
    ): "tests/test_deploy.py::test_three_servers_elect_a_new_leader_after_a_kill",
}
# The same -> why no test runs it.
NOT_RUN = {
    (
        "docs/guides/kubectl.md",
        "# argocd-cm",
    ): "a health check that only Argo CD runs, which the tests do not have",
    ("README.md", "make test"): "it runs these tests",
    ("docs/guides/backup.md", "etcdctl"): "a program of etcd's that neither Lattice nor its tests need",
    (
        "docs/guides/traces.md",
        "pip install",
    ): "fetches OpenTelemetry's launcher; tests/test_tracing.py has its SDK in the process instead",
    (
        "deploy/README.md",
        "useradd",
    ): "needs a machine that systemd runs; tests/test_deploy.py judges the units",
    (
        "deploy/README.md",
        "install -D",
    ): "needs a machine that systemd runs; tests/test_deploy.py judges the units",
    ("deploy/README.md", "docker build"): "needs docker, and fetches an image",
}
LISTED = {**RUN_BY, **NOT_RUN}


def entry(page: str, text: str) -> tuple[str, str] | None:
    """Where it is listed."""
    return next((key for key in LISTED if key[0] == page and text.startswith(key[1])), None)


def followed(path: Path) -> list[Step]:
    """What a reader of the page types, and these tests with them."""
    return [step for step in steps(path) if entry(shown(path), step.command) is None]


@dataclass
class Reader:
    """A reader in a folder of their own that types the samples of a page, with the addresses of the server under test."""

    folder: Path
    program: PreloadedCli
    addresses: dict[str, str] = field(default_factory=dict)
    agents: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    def here(self, text: str) -> str:
        for theirs, ours in self.addresses.items():
            text = text.replace(theirs, ours)
        return text

    @property
    def environment(self) -> dict[str, str]:
        ours = ("LATTICE_", "KUBECONFIG")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {
            **kept,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.folder),
            "NO_COLOR": "1",
        }

    def run(self, command: str) -> "subprocess.CompletedProcess[str]":
        if plain := PLAIN.fullmatch(command):
            return self._run_loaded(shlex.split(self.here(plain[1])), plain[2])
        words = ["bash", "-c", self.here(command)]
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.run(
            words, cwd=self.folder, env=self.environment, text=True, timeout=60, check=False, **both
        )

    def _run_loaded(self, words: list[str], file: str | None) -> "subprocess.CompletedProcess[str]":
        """Run a command without a shell; standard output may be redirected to a file."""
        said = self.folder / "said"
        said.write_text("")
        out = self.folder / file if file else said
        out.write_text("")
        code = self.program.run(Command(words, str(self.folder), self.environment, str(out), str(said)))
        return subprocess.CompletedProcess(words, code, said.read_text())

    def begin(self, command: str) -> None:
        """Something that goes on until the page ends."""
        with (self.folder / "agent.log").open("wb") as log:
            words = ["bash", "-c", f"exec {self.here(command)}"]
            self.agents.append(
                subprocess.Popen(words, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            )

    def end(self) -> None:
        while self.agents:
            agent = self.agents.pop()
            agent.send_signal(signal.SIGTERM)
            agent.wait(30)

    def follow(self, path: Path) -> None:
        for name, text in files(path):
            (self.folder / name).write_text(self.here(text))
        try:
            for step in followed(path):
                self.type(step)
        finally:
            self.end()

    def type(self, step: Step) -> None:
        if step.command.startswith(STAYS):
            return self.begin(step.command)
        if is_missing(step.command.split()[0]):
            return None
        until, pause = time.monotonic() + (LONGEST if ONLY_LOOKS.match(step.command) else 0), 0.2
        while True:
            done = self.run(step.command)
            wrong = difference([self.here(line) for line in step.lines], done.stdout)
            if not wrong or time.monotonic() > until:
                break
            time.sleep(pause)
            pause = min(pause * 2, 3.0)
        assert step.may_end_with(done.returncode), (
            f"$ {step.command}\nended with {done.returncode}:\n{done.stdout}"
        )
        assert not wrong, f"$ {step.command}\n{wrong}\nbut:\n{done.stdout}"
        return None


def is_missing(program: str) -> bool:
    if program not in FOREIGN or shutil.which(program):
        return False
    if os.environ.get("CI"):
        pytest.fail(f"{program} is not installed: what the pages show of it must run in CI")
    return True


class Started(NamedTuple):
    server: Server
    said: str


def recipe() -> str:
    """What `make up` runs."""
    found = re.search(r"^up:.*\n\t@(.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    return found[1].replace("$(BIN)", str(BIN)).replace("$(DATA_DIR)", ".lattice")


def up(reader: Reader) -> Started:
    """What `make up` starts, from the reader's folder, on ports that are free."""
    agents, log = free_port(), reader.folder / "up.log"
    path = os.pathsep.join(
        folder for folder in os.environ["PATH"].split(os.pathsep) if not Path(folder, "lattice").exists()
    )
    words = [
        *shlex.split(recipe()),
        "--port",
        "0",
        "--agents-port",
        str(agents),
        "--providers",
        "local,docker=local,metal=manual",
    ]
    with log.open("w") as file:
        process = subprocess.Popen(
            words,
            cwd=reader.folder,
            env={**reader.environment, "PATH": path},
            stdout=file,
            stderr=file,
            text=True,
        )
    until = time.monotonic() + 60
    while "Press Ctrl-C to stop." not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    said = log.read_text()
    url = said.partition(" up at ")[2].split()[0]
    reader.addresses |= {
        "127.0.0.1:7443": url.removeprefix("https://"),
        "127.0.0.1:7444": f"127.0.0.1:{agents}",
    }
    return Started(
        Server(process, url, reader.folder / ".lattice" / "kubeconfig", reader.folder / ".lattice"), said
    )


def wait_until_all_run(wire: Wire) -> None:
    """Wait as a reader does before typing the line after `make up`."""
    until = time.monotonic() + 60
    while phases(wire) != {"Running"}:
        assert time.monotonic() < until, wire.get(SERVICES).value
        time.sleep(0.2)


def phases(wire: Wire) -> set[str]:
    return {service.get("status", {}).get("phase", "") for service in wire.get(SERVICES).value["items"]}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "examples").symlink_to(ROOT / "examples")
    with preloaded_cli() as program:
        yield Reader(folder, program)


@pytest.fixture(scope="module")
def started(reader: Reader) -> Iterator[Started]:
    """Once everything runs."""
    found = up(reader)
    try:
        wait_until_all_run(Wire(found.server.kubeconfig))
        yield found
    finally:
        if found.server.process.poll() is None:
            found.server.stop()


WITH_SAMPLES = [path for path in PAGES if followed(path)]
OFFLINE = [
    path for path in WITH_SAMPLES if all(ASKS_NO_SERVER.match(step.command) for step in followed(path))
]
ASKING = sorted(set(WITH_SAMPLES) - set(OFFLINE), key=lambda path: (shown(path) in LEAVES_THINGS, path))


@pytest.mark.xdist_group("docs offline")
@pytest.mark.parametrize("path", OFFLINE, ids=shown)
def test_offline_samples_run_as_shown(path: Path, reader: Reader) -> None:
    reader.follow(path)


@pytest.mark.xdist_group("docs")
def test_first_start_prints_the_readme_sample(started: Started) -> None:
    shows = next(
        sample.text for sample in samples(ROOT / "README.md") if sample.text.startswith("Lattice is up at")
    )
    said = started.said.replace(started.server.url, "https://127.0.0.1:7443").replace(f"{BIN}/", ".venv/bin/")
    assert difference([line for line in shows.splitlines() if line.strip()], said) == "", said


@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize("path", ASKING, ids=shown)
def test_samples_run_as_shown(path: Path, reader: Reader, started: Started) -> None:
    wire = Wire(started.server.kubeconfig)
    before = declared(wire)
    reader.follow(path)
    if shown(path) not in LEAVES_THINGS:
        assert declared(wire) == before, "the page leaves things behind that the next one does not know of"


def declared(wire: Wire) -> list[str]:
    kinds = ("pools", "nodeclasses", "placementpolicies", "services")
    others = ("cloudinfrastructures", "staticinfrastructures", "automationrules")
    paths = [
        f"/apis/lattice.dev/v1alpha1/{kind}" for kind in (*(f"lattice{each}" for each in kinds), *others)
    ]
    return [f"{path}: {wire.get(path).names}" for path in ("/api/v1/namespaces", *paths)]


@pytest.mark.xdist_group("docs")
def test_backup_is_restored_as_shown(reader: Reader, started: Started) -> None:
    """The last one: it stops the server. What was deleted since the copy is back, what was made since is gone."""
    page = GUIDES / "backup.md"
    wire, was = Wire(started.server.kubeconfig), []
    for step in steps(page):
        if "backup.db" in step.command:
            reader.type(step)
            was = was or declared(wire)
    assert wire.delete(f"{SERVICES}/lab-notes").status == 200
    assert wire.post(CONFIGMAPS, configmap("since", {})).status == 201
    assert started.server.stop() == 0
    restore, start = next(
        sample.text for sample in samples(page) if sample.text.startswith("cp backup.db")
    ).splitlines()
    assert reader.run(restore).returncode == 0
    assert start.startswith("lattice up ")
    with running_server(reader.folder / ".lattice") as again:
        wire = Wire(again.kubeconfig)
        assert declared(wire) == was
        assert wire.get(f"{CONFIGMAPS}/since").status == 404


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_every_sample_is_run_or_listed_with_a_reason(path: Path) -> None:
    """Nothing escapes by the name of its fence: whatever is not typed here, and is no file that the page's commands use, is listed."""
    marks = re.findall(r"^\s*(?:```|~~~)", path.read_text(), re.MULTILINE)
    assert len(marks) == 2 * len(FENCE.findall(path.read_text())), (
        "a sample that is indented, or fenced in another way, is not seen"
    )
    commands = " ".join(step.command for step in followed(path))
    for sample in samples(path):
        if sample.language == "console":
            assert sample.text.startswith("$ "), f"{shown(path)}: what prints this? {sample.text}"
        elif sample.file:
            assert sample.file in commands, f"{shown(path)}: no command uses {sample.file}"
        else:
            assert entry(shown(path), sample.text), (
                f"{shown(path)}: nothing runs this; run it, or list it with the reason: {sample.text}"
            )


def listed_samples() -> Iterator[tuple[tuple[str, str], str]]:
    """What is listed, as the pages have it."""
    for path in PAGES:
        for sample in samples(path):
            texts = (
                [sample.text]
                if sample.language != "console"
                else [step.command for step in typed(sample.text)]
            )
            for text in texts:
                if key := entry(shown(path), text):
                    yield key, text


def test_listed_samples_and_their_tests_exist() -> None:
    assert {key for key, _ in listed_samples()} == set(LISTED)
    for name in RUN_BY.values():
        file, _, test = name.partition("::")
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), (
            f"{name} is not there"
        )


def flags(command: click.Command) -> set[str]:
    """Those of the commands below it, too."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    return own.union({"--help"}, *map(flags, below))


def test_listed_commands_use_existing_flags() -> None:
    seen = 0
    for _, text in listed_samples():
        for name, words in re.findall(r"\blattice (\w+) ([^\n;&|#]*)", text.replace("\\\n", " ")):
            if name in COMMANDS:
                module, _, attribute = COMMANDS[name].target.partition(":")
                known = flags(getattr(importlib.import_module(module), attribute))
                assert set(re.findall(r"(?<!\S)--[\w-]+", words)) <= known, text
                seen += 1
    assert seen > 3


def test_unsaved_manifests_are_parts_of_the_examples() -> None:
    shown_parts = [
        sample
        for name in ("latency.md", "onprem.md")
        for sample in samples(GUIDES / name)
        if sample.language == "yaml" and not sample.file
    ]
    assert len(shown_parts) == 2
    examples = [
        each
        for path in (ROOT / "examples" / "worlds").rglob("*.yaml")
        for each in yaml.safe_load_all(path.read_text())
    ]
    for sample in shown_parts:
        assert any(is_part(yaml.safe_load(sample.text), example) for example in examples), sample


def is_part(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and is_part(value, whole[key]) for key, value in part.items())
    return part == whole


SAID = "NAME AGE\nlab x 1s\n\nnorth 17 % 9m\nrest\ntotal $0.00\n"
NOTICED = {
    "as shown, with lines left out where the page says so": (
        ["NAME   AGE", "…", "north  …  3s", "…", "total  $0.00"],
        "",
    ),
    "another line": (["NAME AGE", "…", "total $0.01"], "does not print (here): total $0.01"),
    "in another order": (["…", "north … 9m", "…", "NAME AGE", "…"], "does not print (here): NAME AGE"),
    "a line left out in between": (["NAME AGE", "north … 9m", "…"], "does not print (here): north … 9m"),
    "lines left out at the end": (
        ["NAME AGE", "lab x 2h", "north … 9m"],
        "prints a line that the page leaves out without `…`: rest",
    ),
    "everything left out": ([], "prints a line that the page leaves out without `…`: NAME AGE"),
}


@pytest.mark.parametrize(("lines", "wrong"), NOTICED.values(), ids=NOTICED)
def test_sample_with_other_output_is_detected(lines: list[str], wrong: str) -> None:
    assert difference(lines, SAID) == wrong


@pytest.mark.parametrize(
    ("output", "wrong"),
    [
        pytest.param(
            "web south-002\napi south-001\nweb-0 south-002\n", "", id="other numbers, the same clusters"
        ),
        pytest.param(
            "web south-001\napi south-001\nweb-0 south-001\n",
            "prints two clusters of the page as one: south-001, south-002",
            id="two clusters printed as one",
        ),
        pytest.param(
            "web south-001\napi south-002\nweb-0 south-002\n",
            "does not print (here): web-0 south-001",
            id="one cluster printed as two",
        ),
        pytest.param(
            "web north-001\napi south-002\nweb-0 north-001\n",
            "does not print (here): web south-001",
            id="another pool",
        ),
    ],
)
def test_sample_keeps_which_services_share_a_cluster(output: str, wrong: str) -> None:
    assert difference(["web south-001", "api south-002", "web-0 south-001"], output) == wrong


def test_continued_commands_and_exit_codes_are_parsed() -> None:
    text = "$ lattice a \\\n  -b\none\n\ntwo\n$ echo $?\n2\n$ lattice c\n"
    assert list(typed(text)) == [Step("lattice a \\\n  -b", ["one", "two"], 2), Step("lattice c", [])]
    assert Sample("p", "yaml", "# a.yaml\nb: 1\n").file == "a.yaml"
    assert Sample("p", "bash", "# one two\nls\n").file == ""


def test_kustomize_reaches_the_fields_of_a_service(tmp_path: Path) -> None:
    page = next(path for path in PAGES if shown(path) == "docs/guides/kubectl.md")
    fields = next(sample.text for sample in samples(page) if sample.text.startswith("# lattice-fields.yaml"))
    (tmp_path / "lattice-fields.yaml").write_text(fields)
    service = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": {"name": "web"},
        "spec": {"containers": {"main": {"image": "nginx:1.28"}}},
    }
    (tmp_path / "web.yaml").write_text(yaml.safe_dump(service))
    kustomization = {
        "resources": ["web.yaml"],
        "configurations": ["lattice-fields.yaml"],
        "images": [{"name": "nginx", "newTag": "1.29"}],
        "replicas": [{"name": "web", "count": 5}],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    kubectl = find_kubectls()[-1].path
    built = subprocess.run([kubectl, "kustomize", str(tmp_path)], capture_output=True, check=True).stdout
    spec = yaml.safe_load(built)["spec"]
    assert spec == {"containers": {"main": {"image": "nginx:1.29"}}, "replicas": {"min": 5}}
