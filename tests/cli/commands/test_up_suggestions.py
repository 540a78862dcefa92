"""The commands that `lattice up` suggests work as printed."""

import os
import shlex
import sys
from pathlib import Path

import pytest

from lattice.cli.commands.up import suggestions


def a_kubeconfig(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "kubeconfig").touch()
    return folder / "kubeconfig"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing but the folder says where the server is, and the program is not on the path."""
    for name in ("LATTICE_KUBECONFIG", "LATTICE_ADDR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def ours(kubeconfig: Path) -> list[list[str]]:
    """The words of the commands that are not kubectl's, without the program."""
    return [
        shlex.split(command)[1:]
        for command, _ in suggestions(kubeconfig)
        if not command.startswith("kubectl")
    ]


def test_default_kubeconfig_needs_no_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = a_kubeconfig(tmp_path / ".lattice")
    assert ours(kubeconfig)[0] == ["top"]
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert ours(kubeconfig)[0] == ["top"]


@pytest.mark.parametrize("name", ["data", "with space", "it's"])
def test_other_kubeconfig_is_passed_shell_quoted(tmp_path: Path, name: str) -> None:
    a_kubeconfig(tmp_path / ".lattice")
    kubeconfig = a_kubeconfig(tmp_path / name)
    assert ours(kubeconfig)[0] == ["top", "--kubeconfig", f"{name}/kubeconfig"]
    assert shlex.split(suggestions(kubeconfig)[1][0])[:3] == ["kubectl", "--kubeconfig", f"{name}/kubeconfig"]


def test_address_in_the_environment_requires_the_flag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = a_kubeconfig(tmp_path / ".lattice")
    monkeypatch.setenv("LATTICE_ADDR", "elsewhere:1")
    assert ours(kubeconfig)[0][1] == "--kubeconfig"


def test_examples_are_suggested_where_they_are(tmp_path: Path) -> None:
    kubeconfig = a_kubeconfig(tmp_path / ".lattice")
    assert ours(kubeconfig)[1:] == [["cost"], ["--help"]]
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "vault.yaml").touch()
    assert ours(kubeconfig)[1:] == [["cost"], ["plan", "-f", "examples/vault.yaml"]]


def test_program_off_the_path_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kubeconfig = a_kubeconfig(tmp_path / ".lattice")
    program = Path(sys.executable).parent / "lattice"
    assert shlex.split(suggestions(kubeconfig)[0][0])[0] == str(program)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{tmp_path}")
    assert shlex.split(suggestions(kubeconfig)[0][0])[0] == "lattice"
