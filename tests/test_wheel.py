"""The wheel, in an environment of its own, has everything that `lattice up` needs."""

import contextlib
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.cli.commands import up

ROOT = Path(__file__).parents[1]
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
IN_EVERY_WHEEL = (
    "lattice/examples/quickstart/services.yaml",
    "lattice/examples/vault.yaml",
    "lattice/ui/static/index.html",
    "lattice/py.typed",
)


def test_quickstart_is_found_in_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Path(up._resolve_seed("quickstart"), "services.yaml").exists()
    assert up._resolve_seed("elsewhere") == "elsewhere", "what is not there is refused by whoever reads it"
    (tmp_path / "quickstart").mkdir()
    assert up._resolve_seed("quickstart") == "quickstart", "the user's own goes first"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [UV, "build", "-q", "--wheel", "--python", sys.executable, "--out-dir", folder], cwd=ROOT, check=True
    )
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("clean")
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, home / "venv"], check=True, env=clean())
    subprocess.run(
        [UV, "pip", "install", "-q", "--python", home / "venv" / "bin" / "python", wheel],
        check=True,
        env=clean(),
        cwd=home,
    )
    return home / "venv" / "bin" / "lattice"


def clean() -> dict[str, str]:
    """Nothing of this checkout or of the environment that the tests run in."""
    ours = ("LATTICE_", "PYTHON", "VIRTUAL_ENV", "KUBECONFIG", "UV_PROJECT")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)} | {
        "NO_COLOR": "1"
    }


@contextlib.contextmanager
def started(program: Path, folder: Path) -> Iterator[str]:
    """What it said by the time that it only waits for Ctrl-C."""
    log = folder / "up.log"
    command = [program, "up", "--port", "0", "--seed", "quickstart"]
    with log.open("w") as file:
        process = subprocess.Popen(command, cwd=folder, env=clean(), stdout=file, stderr=subprocess.STDOUT)
    until = time.monotonic() + 60
    try:
        while "Press Ctrl-C to stop." not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        yield log.read_text()
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.mark.prove
def test_wheel_contains_the_page_and_the_quickstart(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        assert {*IN_EVERY_WHEEL} <= {*opened.namelist()}


@pytest.mark.prove
def test_lattice_up_runs_the_quickstart_from_the_wheel(program: Path, tmp_path: Path) -> None:
    with started(program, tmp_path) as said:
        assert "\n11 created\n" in said, said
        ask = [program, "get", "services", "-o", "jsonpath={.items[*].status.phase}"]
        until = time.monotonic() + 60
        while (
            subprocess.run(
                ask, cwd=tmp_path, env=clean(), capture_output=True, text=True, check=True
            ).stdout.split()
            != ["Running"] * 4
        ):
            assert time.monotonic() < until
            time.sleep(0.5)
        url = said.partition(" up at ")[2].split()[0]
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = (
            False,
            ssl.CERT_NONE,
        )  # its own authority; what is asked is whether the page is there
        with urllib.request.urlopen(f"{url}/ui/", context=context) as page:
            assert b"<title>" in page.read()
