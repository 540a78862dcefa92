"""Settings come from flags, the environment and a file, in this order; an error in a file names its line."""

import random

import click
import pytest
from build.virtual import VirtualClock

from lattice.agent.join import split_servers
from lattice.app.leadership import build_dependencies, build_election
from lattice.cli.client.config import find_server
from lattice.cli.commands.agent import agent
from lattice.cli.commands.server import server, with_etcd_host
from lattice.cli.commands.up import up
from lattice.controllers.controller_set import ControllerSet
from lattice.controllers.runtime.context import ControllerContext
from lattice.presence import Presence
from lattice.server.access.certificate_authority import new_authority
from lattice.settings import SETTINGS_BY_NAME, Settings
from lattice.store.memory import MemoryStore
from lattice.store.protocol import Term

NAMES = (
    "LATTICE_CONFIG",
    "LATTICE_AGENT_CONFIG",
    "LATTICE_PORT",
    "LATTICE_STORE",
    "ETCD_HOST",
    "ETCD_PORT",
    "LATTICE_SERVER",
)

HELP = ["-h", "--help"]  # as `lattice` itself has them: a command keeps those that it was first asked with


@pytest.fixture(autouse=True)
def bare(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (*NAMES, "CONTROL_PLANE_API_URL", "LATTICE_KUBECONFIG", "LATTICE_ADDR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)


def settings(*flags: str, command: click.Command = server) -> Settings:
    """What the command would run with."""
    with command.make_context(command.name, list(flags), help_option_names=HELP) as context:
        found = Settings(
            **{
                name: value
                for name, value in context.params.items()
                if name.replace("_", "-") in SETTINGS_BY_NAME
            }
        )
        return with_etcd_host(found)


@pytest.mark.parametrize("command", [server, up], ids=["server", "up"])
def test_settings_precedence_is_flag_environment_file_default(command, tmp_path, monkeypatch):
    file = tmp_path / "lattice.yaml"
    file.write_text("port: 7001\nheartbeat: 2\nreplace-after: 30.5\nadvertise: lattice.example\n")
    said = settings("--config", str(file), command=command)
    assert (said.port, said.heartbeat, said.replace_after, said.advertise) == (
        7001,
        2.0,
        30.5,
        "lattice.example",
    )
    assert said.history == Settings().history
    monkeypatch.setenv("LATTICE_PORT", "7002")
    assert settings("--config", str(file), command=command).port == 7002
    assert settings("--config", str(file), "--port", "7003", command=command).port == 7003
    monkeypatch.setenv("LATTICE_CONFIG", str(file))
    assert settings(command=command).heartbeat == 2.0


def test_every_setting_can_be_set_in_a_file(tmp_path):
    file = tmp_path / "all.yaml"
    file.write_text(
        "".join(
            f"{name}: {'true' if each.default is False else repr(each.default)}\n"
            for name, each in SETTINGS_BY_NAME.items()
        )
    )
    assert settings("--config", str(file)) == Settings(allow_etcd_that_loses_writes=True)


def test_agent_config_file_takes_lists_for_repeated_flags(tmp_path, monkeypatch):
    file = tmp_path / "agent.yaml"
    file.write_text(
        "server: https://a:1\ncpu: 500m\nlabel: [rack=7, disk=ssd]\ngrace: 90s\nstop-workloads-on-exit: true\n"
    )
    monkeypatch.setenv("LATTICE_AGENT_CONFIG", str(file))
    with agent.make_context("agent", ["--cpu", "2"], help_option_names=HELP) as context:
        said = context.params
    assert (said["server"], said["cpu"], said["grace"], said["stop_on_exit"]) == (
        ("https://a:1",),
        "2",
        90.0,
        True,
    )
    assert said["labels"] == ("rack=7", "disk=ssd")


@pytest.mark.parametrize("command", ["server", "up"])
@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        pytest.param(
            "port: 1\nhartbeat: 3\n",
            "f.yaml:2: there is no setting 'hartbeat'; did you mean heartbeat?",
            "--help` lists",
            id="slip",
        ),
        pytest.param(
            "zzz: 3\n",
            "f.yaml:1: there is no setting 'zzz'\n",
            "use the name of a flag",
            id="nothing like it",
        ),
        pytest.param("config: x\n", "there is no setting 'config'", "", id="a file that names a file"),
        pytest.param(
            "\nport: 70000\n",
            "f.yaml:2 port: must be 0 to 65535, got 70000",
            "after the flag",
            id="out of range",
        ),
        pytest.param(
            "port: true\n",
            "f.yaml:1 port: must be of type integer, got true",
            "write one value",
            id="a truth for a number",
        ),
        pytest.param("port: 1.5\n", "f.yaml:1 port: must be 0 to 65535, got 1.5", "", id="a broken port"),
        pytest.param(
            "listen:\n", "f.yaml:1 listen: must be text, got nothing", "write one value", id="nothing"
        ),
        pytest.param(
            "listen: [a, b]\n", "f.yaml:1 listen: must be text, got a list", "write one value", id="a list"
        ),
        pytest.param(
            "heartbeat: fast\n",
            "f.yaml:1 heartbeat: must be more than 0 seconds, got fast",
            "",
            id="a word for a number",
        ),
        pytest.param(
            "reconcile-workers: 0\n",
            "f.yaml:1 reconcile-workers: must be a whole number, 1 or more, got 0",
            "",
            id="no workers",
        ),
        pytest.param(
            "allow-etcd-that-loses-writes: 'yes'\n",
            "must be true or false, got 'yes'",
            "write true or false",
            id="text for a switch",
        ),
        pytest.param("port: 1\nport: 2\n", "f.yaml:2", "", id="said twice"),
        pytest.param("- port\n", "f.yaml:1", "", id="no mapping"),
        pytest.param("a: b: c\n", "f.yaml:1: is not YAML", "", id="no YAML"),
        pytest.param(
            "port: 1\n---\nport: 2\n", "a settings file holds one document", "---", id="two documents"
        ),
    ],
)
def test_config_file_error_names_its_line(lattice, tmp_path, command, text, problem, fix):
    (tmp_path / "f.yaml").write_text(text)
    ran = lattice(command, "--config", "f.yaml")
    assert ran.code == 2
    assert problem in ran.err
    assert "fix:" in ran.err
    assert fix in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["f.yaml"]  # nothing was begun


def test_missing_config_file_is_named(lattice):
    ran = lattice("server", "--config", "nowhere.yaml")
    assert (ran.code, ran.err.splitlines()[0]) == (
        2,
        "error: nowhere.yaml: cannot be read: no such file or directory",
    )


def test_environment_settings_take_effect(monkeypatch):
    for name, value in {
        "RECONCILE_INTERVAL": "0.7",
        "RECONCILE_WORKERS": "3",
        "LEADER_LEASE_TTL": "2.5",
        "SCHEDULER_INSTANCE_ID": "seven",
    }.items():
        monkeypatch.setenv(name, value)
    said, clock = settings(), VirtualClock()
    store = MemoryStore(clock)
    election = build_election(said, store, clock, said.instance_id)
    assert (election.ttl, election.holder) == (2.5, "seven")
    office = ControllerContext(
        store, clock, Term("controllers", 1, "seven"), random.Random(1), Presence(clock)
    )
    acting = ControllerSet(office, build_dependencies(said, new_authority()[0], clock, {}))
    looks = {loop.controller.name: loop for loop in acting.loops}
    assert looks["workloads"].controller.recheck_interval_s == 0.7
    assert {looks[name].concurrency.workers for name in ("workloads", "nodes", "departures")} == {3}


@pytest.mark.parametrize(
    ("environment", "flags", "store"),
    [
        pytest.param({"ETCD_HOST": "e", "ETCD_PORT": "1234"}, (), "etcd://e:1234", id="host and port"),
        pytest.param({"ETCD_HOST": "e"}, (), "etcd://e:2379", id="the usual port"),
        pytest.param({"ETCD_PORT": "1234"}, (), "", id="a port alone names nothing"),
        pytest.param({"ETCD_HOST": "e"}, ("--store", "etcd://flag:1"), "etcd://flag:1", id="a flag wins"),
        pytest.param(
            {"ETCD_HOST": "e", "LATTICE_STORE": "etcd://env:1"}, (), "etcd://env:1", id="the longer name wins"
        ),
        pytest.param(
            {"ETCD_HOST": "e"}, ("--config", "f.yaml"), "etcd://e:2379", id="the environment wins over a file"
        ),
        pytest.param({}, ("--config", "f.yaml"), "etcd://file:1", id="a file"),
    ],
)
def test_store_address_from_the_environment(tmp_path, monkeypatch, environment, flags, store):
    (tmp_path / "f.yaml").write_text("store: etcd://file:1\n")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert settings(*flags).store == store


def test_invalid_etcd_port_is_refused(lattice, monkeypatch):
    monkeypatch.setenv("ETCD_HOST", "e")
    monkeypatch.setenv("ETCD_PORT", "http")
    ran = lattice("server")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "error: ETCD_PORT: must be 1 to 65535, got http")


def test_control_plane_url_is_used_by_agent_and_commands(lattice, monkeypatch):
    monkeypatch.setenv("CONTROL_PLANE_API_URL", "https://zzz.invalid:1")
    with agent.make_context("agent", [], help_option_names=HELP) as context:
        assert context.params["server"] == ("https://zzz.invalid:1",)
    ran = lattice("get", "pools")
    assert ran.code == 3
    assert "check the address in CONTROL_PLANE_API_URL" in ran.err
    monkeypatch.setenv("LATTICE_SERVER", "https://own:1")
    with agent.make_context("agent", [], help_option_names=HELP) as context:
        assert context.params["server"] == ("https://own:1",)
    assert (
        find_server(None, None, {"CONTROL_PLANE_API_URL": "a:1", "LATTICE_ADDR": "b:1"}).url == "https://b:1"
    )


@pytest.mark.parametrize(
    ("flags", "environment", "asked"),
    [
        pytest.param(
            ["--server", "https://a:1,https://b:1"],
            "",
            ["https://a:1", "https://b:1"],
            id="separated by commas",
        ),
        pytest.param(
            ["--server", "https://a:1", "--server", "https://b:1"],
            "",
            ["https://a:1", "https://b:1"],
            id="repeated",
        ),
        pytest.param([], "https://a:1, https://b:1", ["https://a:1", "https://b:1"], id="by the environment"),
        pytest.param(["--server", "https://a:1"], "https://b:1", ["https://a:1"], id="a flag wins"),
        pytest.param([], "", [""], id="none"),
    ],
)
def test_an_agent_can_be_given_several_servers(monkeypatch, flags, environment, asked):
    if environment:
        monkeypatch.setenv("LATTICE_SERVER", environment)
    with agent.make_context("agent", flags, help_option_names=HELP) as context:
        assert split_servers(",".join(context.params["server"])) == asked
