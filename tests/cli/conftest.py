"""Commands run as a user runs them: arguments in, exit code and both streams out."""

from typing import NamedTuple

import pytest
from build.tiny import running_tiny

from lattice.cli.main import main


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with running_tiny(tmp_path) as running:
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
