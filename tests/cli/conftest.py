"""Commands run as a user runs them: arguments in, exit code and both streams out."""

import shutil
from typing import NamedTuple

import pytest
from build.example_worlds import SEED_000
from build.fake_api_server import running_fake_api_server

from lattice.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running_fake_api_server(tmp_path) as running:
        monkeypatch.setenv("LATTICE_KUBECONFIG", running.kubeconfig)
        yield running


@pytest.fixture
def lattice(capsys):
    def ran(*arguments):
        code = main(arguments)
        out, err = capsys.readouterr()
        return Ran(code, out, err)

    return ran


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def written(name, text):
        (tmp_path / name).write_text(text)
        return name

    return written


@pytest.fixture
def no_server(tmp_path, monkeypatch):
    """Away from any server that might be running."""
    monkeypatch.chdir(tmp_path)
    for name in ("LATTICE_KUBECONFIG", "LATTICE_ADDR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def without_gdpr(tmp_path):
    """World seed-000 whose pool us-east lacks compliance GDPR."""
    folder = tmp_path / "printed"
    shutil.copytree(SEED_000, folder)
    pools = folder / "pools.yaml"
    pools.write_text(pools.read_text().replace("[soc2, hipaa, gdpr]", "[soc2, hipaa]"))
    return str(folder)
