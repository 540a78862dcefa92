"""The files under deploy/ name existing settings, flags and versions, and the example with three servers
works."""

import configparser
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from lattice.cli.commands.agent import agent
from lattice.settings import SETTINGS

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
AGENT_FLAGS = {flag.removeprefix("--") for option in agent.params for flag in option.opts}
FLAGS = {"server": {setting.name for setting in SETTINGS} | {"config"}, "agent": AGENT_FLAGS}


@pytest.mark.parametrize("program", sorted(FLAGS))
def test_settings_in_the_examples_exist(program: str) -> None:
    given = yaml.safe_load((DEPLOY / "etcd" / f"{program}.yaml").read_text())
    assert set(given) <= FLAGS[program]


def test_settings_in_the_reference_exist() -> None:
    shown = re.findall(
        r"^```yaml\n(.*?)^```$",
        (ROOT / "docs" / "reference" / "settings.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert [set(yaml.safe_load(text)) <= FLAGS["server"] for text in shown] == [True]


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)  # a setting may be given twice
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read(path)
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_start_programs_with_flags_that_exist(path: Path) -> None:
    words = unit(path)["Service"]["ExecStart"].split()
    assert {flag.removeprefix("--") for flag in words if flag.startswith("--")} <= FLAGS[words[1]]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_unit_documentation_is_installed_by_the_readme_steps(path: Path) -> None:
    file = Path(unit(path)["Unit"]["Documentation"].removeprefix("file://"))
    steps = next(
        part for part in (DEPLOY / "README.md").read_text().split("```") if f"{path.name} /etc" in part
    )
    put = re.search(rf"^install -D -m 644 -t {file.parent} (\S+)", steps, re.MULTILINE)
    assert put is not None
    assert (Path(put[1]).name, (ROOT / put[1]).is_file()) == (file.name, True)


def test_system_packages_of_tests_are_printed_and_documented(tmp_path: Path) -> None:
    """On a machine of root's that has nothing, with an apt-get that only writes down what it is asked for."""
    programs, asked = tmp_path / "bin", tmp_path / "asked"
    programs.mkdir()
    for name in ("bash", "dirname", "mkdir", "mktemp", "rm"):
        (programs / name).symlink_to(shutil.which(name) or "")
    for name, does in {"id": "echo 0", "apt-get": f'echo "$@" >> {asked}', "dpkg": "true"}.items():
        (programs / name).write_text(f"#!{programs}/bash\n{does}\n")
        (programs / name).chmod(0o755)
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "tools", tmp_path / ".ci")
    done = subprocess.run(
        [programs / "bash", tmp_path / ".ci" / "tools"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = {
        word
        for line in asked.read_text().splitlines()
        if line.startswith("install")
        for word in line.split()[1:]
        if word[0] != "-"
    }
    assert wanted == {"podman", "runc", "busybox-static", "chromium"}
    readme = (ROOT / "README.md").read_text()
    for package in wanted:
        assert re.search(rf"^tools: installing .*\b{package}\b", done.stdout, re.MULTILINE), done.stdout
        assert f"`{package}`" in readme


@pytest.mark.prove
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_valid(path: Path, tmp_path: Path) -> None:
    assert shutil.which("systemd-analyze"), "install systemd: its own program says whether units are valid"
    text = path.read_text().replace("/opt/lattice/bin/lattice", sys.executable)
    (tmp_path / path.name).write_text(text)
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / path.name],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_agent_unit_keeps_workloads_and_stays_down_when_denied() -> None:
    service = unit(DEPLOY / "systemd" / "lattice-agent.service")["Service"]
    assert (service["KillMode"], service["Delegate"], service["RestartPreventExitStatus"]) == (
        "process",
        "yes",
        "4",
    )


def test_the_image_uses_the_pinned_uv() -> None:
    pinned = re.search(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text())
    assert pinned is not None
    assert f"uv=={pinned[1]}" in (DEPLOY / "Dockerfile").read_text()


def health(port: int) -> dict[str, object]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(f"https://127.0.0.1:{port}/health", context=context, timeout=2) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}


def wait_for_leader(*ports: int) -> int:
    until = time.monotonic() + 60
    while True:
        leading = [port for port in ports if health(port).get("isLeader")]
        if leading:
            return leading[0]
        assert time.monotonic() < until, f"nobody leads: {[health(port) for port in ports]}"
        time.sleep(0.2)


@pytest.mark.prove
@pytest.mark.xdist_group("ha")
def test_three_servers_elect_a_new_leader_after_a_kill(tmp_path: Path) -> None:
    assert shutil.which("etcd"), "`make tools` fetches one"
    log, path = tmp_path / "try.log", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("w") as said:
        script = subprocess.Popen(
            [DEPLOY / "etcd" / "try.sh", tmp_path / "three"],
            env={**os.environ, "PATH": path},
            stdout=said,
            stderr=said,
        )
    try:
        first = wait_for_leader(11443, 12443, 13443)
        shown = re.search(
            r"^\$ curl .*/health\n(.+)$", (DEPLOY / "etcd" / "README.md").read_text(), re.MULTILINE
        )
        assert shown is not None
        assert health(first).keys() == json.loads(shown[1]).keys()
        process = re.search(rf"127\.0\.0\.1:{first}  process (\d+)", log.read_text())
        assert process is not None
        os.kill(int(process[1]), signal.SIGKILL)
        assert wait_for_leader(*({11443, 12443, 13443} - {first})) != first
    finally:
        script.send_signal(signal.SIGTERM)
        script.wait(30)
