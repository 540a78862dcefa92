"""The program: cheap help, exit codes, precedence of server addresses, and errors of the connection."""

import base64
import json
import os
import subprocess
import sys

import pytest

from lattice.cli.client.config import Server, find_server, read_kubeconfig
from lattice.cli.client.http import Client, error_from_status
from lattice.cli.client.options import Duration
from lattice.cli.main import COMMANDS
from lattice.errors import (
    Conflict,
    Denied,
    Exists,
    Gone,
    Invalid,
    LatticeError,
    Malformed,
    NotFound,
    TooManyRequests,
    Unavailable,
    UnknownUser,
)

HEAVY = (
    "rich",
    "aiohttp",
    "grpc",
    "structlog",
    "cryptography",
    "msgspec",
    "yaml",
    "apsw",
    "prometheus_client",
    "lattice.kinds",
    "ssl",
    "asyncio",
)


def test_help_imports_nothing_heavy():
    code = f"import sys, lattice.cli.main as m; assert m.main(['--help']) == 0; print([x for x in {HEAVY!r} if x in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"
    assert all(f"  {name} " in ran.stdout for name in COMMANDS)


OURS = ("apply", "get", "describe", "delete", "events", "crds", "completion", "version")


INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting())
from lattice.__main__ import run
sys.argv = ["lattice", "simulate", "-f", "-"]
run()
"""


@pytest.mark.parametrize("module", ["lattice.cli.main", "click", "lattice.cli.commands.simulate", "numpy"])
def test_interrupt_during_import_exits_silently(module):
    script = INTERRUPTED.replace("MODULE", repr(module))
    ran = subprocess.run(
        [sys.executable, "-c", script], input="", capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")


def test_package_is_runnable_with_python_m():
    ran = subprocess.run(
        [sys.executable, "-m", "lattice", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.startswith("lattice ")


@pytest.mark.parametrize("command", OURS)
def test_every_command_helps_with_examples(lattice, command):
    ran = lattice(command, "-h")
    assert ran.code == 0
    assert "Examples:" in ran.out
    assert ran.out.split("\n\n")[1].strip().splitlines()[0] == COMMANDS[command].help


@pytest.mark.parametrize("command", [c for c in OURS if c not in ("crds", "completion")])
def test_every_client_command_has_connection_flags(lattice, command):
    text = lattice(command, "--help").out
    assert all(flag in text for flag in ("--kubeconfig", "--context", "--namespace", "--request-timeout"))


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param(["get", "pools", "--nope"], 2, "No such option", id="an unknown flag"),
        pytest.param(["gett"], 2, "there is no command 'gett'; did you mean 'get'?", id="an unknown command"),
        pytest.param(
            ["get", "pools", "-o", "xml"],
            2,
            "'xml' is not an output format of this command",
            id="an unknown form",
        ),
        pytest.param(["get", "pools", "-o", "jsonpath={.a"], 2, "at character 4", id="a bad template"),
        pytest.param(["get", "pools", "--sort-by", "a["], 2, "at character 3", id="a bad path"),
        pytest.param(
            ["get", "pools", "--request-timeout", "soon"], 2, "'soon' is not a duration", id="a bad duration"
        ),
        pytest.param(["get", "pols"], 1, "there is no kind 'pols'", id="an unknown kind"),
        pytest.param(
            ["apply", "-f", "nowhere.yaml"],
            1,
            "nowhere.yaml: cannot be read: no such file",
            id="a missing file",
        ),
    ],
)
def test_exit_codes(lattice, arguments, code, text):
    ran = lattice(*arguments)
    assert ran.code == code
    assert text in ran.err


def test_no_server_configured(lattice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("LATTICE_KUBECONFIG", "LATTICE_ADDR", "KUBECONFIG"):
        monkeypatch.delenv(name, raising=False)
    ran = lattice("get", "pools")
    assert (ran.code, ran.err.splitlines()[0]) == (3, "error: no server is configured")
    assert "lattice up" in ran.err


def test_unreachable_server_error(lattice, monkeypatch):
    monkeypatch.setenv("LATTICE_ADDR", "http://127.0.0.1:9")
    monkeypatch.delenv("LATTICE_KUBECONFIG", raising=False)
    ran = lattice("get", "pools")
    assert ran.code == 3
    assert (
        ran.err
        == "error: no server answers at http://127.0.0.1:9\n  fix: start the server with `lattice up`, or check the address\n"
    )


def a_kubeconfig(server="https://example:1", context=None, **user):
    return json.dumps(
        {
            "current-context": "one",
            "contexts": [
                {"name": "one", "context": {"cluster": "c", "user": "u", **(context or {})}},
                {"name": "two", "context": {"cluster": "d", "user": "u"}},
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": server}},
                {"name": "d", "cluster": {"server": "https://other:2/"}},
            ],
            "users": [{"name": "u", "user": user}],
        }
    )


def test_server_address_precedence(tmp_path, monkeypatch):
    files = {name: tmp_path / name for name in ("flag", "lattice", "kube")}
    for name, path in files.items():
        path.write_text(a_kubeconfig(f"https://{name}:1"))
    inner = tmp_path / "shop" / "deep"
    inner.mkdir(parents=True)
    near = tmp_path / "shop" / ".lattice"
    near.mkdir()
    (near / "kubeconfig").write_text(a_kubeconfig("https://near:1"))
    monkeypatch.chdir(inner)
    everything = {
        "LATTICE_KUBECONFIG": str(files["lattice"]),
        "LATTICE_ADDR": "addr:1",
        "LATTICE_TOKEN": "t",
        "KUBECONFIG": str(files["kube"]),
    }
    assert find_server(str(files["flag"]), None, everything).url == "https://flag:1"
    assert find_server(None, None, everything).url == "https://lattice:1"
    del everything["LATTICE_KUBECONFIG"]
    assert find_server(None, None, everything) == Server("https://addr:1", token="t")
    del everything["LATTICE_ADDR"]
    assert find_server(None, None, everything).url == "https://near:1"
    monkeypatch.chdir(tmp_path)
    assert find_server(None, None, everything).url == "https://kube:1"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_kubeconfig_of_another_user_is_ignored(tmp_path, monkeypatch):
    (tmp_path / ".lattice").mkdir()
    (tmp_path / ".lattice" / "kubeconfig").write_text(a_kubeconfig("https://trap:1"))
    os.chown(tmp_path / ".lattice" / "kubeconfig", 65534, 65534)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Unavailable, match="no server is configured"):
        find_server(None, None, {})


def test_shell_completion_offers_commands_flags_and_kinds():
    def offered(*words):
        environment = {
            **os.environ,
            "_LATTICE_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        ran = subprocess.run(
            [sys.executable, "-m", "lattice.cli.main"],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        return [line.partition(",")[2] for line in ran.stdout.splitlines()]

    assert offered("lattice", "de") == ["describe", "delete"]
    assert offered("lattice", "get", "poo") == ["pools"]
    assert offered("lattice", "get", "pools,nodec") == ["pools,nodeclasses"]
    assert "--sort-by" in offered("lattice", "get", "--so")


def test_a_kubeconfig_is_read_whole(tmp_path):
    (tmp_path / "ca.pem").write_text("AUTHORITY")
    config = json.loads(a_kubeconfig(context={"namespace": "shop"}, token="t"))
    config["users"][0]["user"] |= {
        "client-certificate-data": base64.b64encode(b"CERT").decode(),
        "client-key-data": base64.b64encode(b"KEY").decode(),
    }
    config["clusters"][0]["cluster"] |= {"certificate-authority": "ca.pem", "tls-server-name": "lattice"}
    path = tmp_path / "config"
    path.write_text(json.dumps(config))
    assert read_kubeconfig(path) == Server(
        "https://example:1",
        authority="AUTHORITY",
        certificate="CERT",
        key="KEY",
        token="t",
        namespace="shop",
        tls_server_name="lattice",
    )
    assert read_kubeconfig(path, "two").url == "https://other:2"


@pytest.mark.parametrize(
    ("text", "context", "problem"),
    [
        pytest.param("a: [", None, "is not YAML", id="not YAML"),
        pytest.param("- a", None, "is not a kubeconfig", id="a list"),
        pytest.param("{}", None, "names no current-context", id="empty"),
        pytest.param(a_kubeconfig(), "three", "there is no context 'three'", id="an unknown context"),
        pytest.param(a_kubeconfig(exec={}), None, "uses an authentication plugin", id="a login plugin"),
        pytest.param(a_kubeconfig(server=""), None, "the cluster has no server address", id="no address"),
        pytest.param(
            a_kubeconfig(**{"client-key-data": "%%%"}),
            None,
            "client-key-data is not base64",
            id="broken data",
        ),
        pytest.param(
            a_kubeconfig(**{"client-key": "nowhere"}), None, "cannot read the client-key", id="a missing key"
        ),
    ],
)
def test_bad_kubeconfigs_are_refused(tmp_path, text, context, problem):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(LatticeError, match=problem) as raised:
        read_kubeconfig(path, context)
    assert raised.value.fix


@pytest.mark.parametrize("url", ["ftp://x", "https://", "nonsense", "http://x:99999", "http://[::1"])
def test_bad_addresses_are_refused(url):
    with pytest.raises(Malformed, match="is not a server address"):
        Client(Server(url))


def test_bad_certificates_are_refused():
    with pytest.raises(Malformed, match="a certificate or key cannot be read"):
        Client(Server("https://x", authority="not PEM"))


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [
        (401, "Unauthorized", UnknownUser),
        (403, "Forbidden", Denied),
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", Exists),
        (409, "Conflict", Conflict),
        (410, "Expired", Gone),
        (410, "Gone", Gone),
        (422, "Invalid", Invalid),
        (429, "TooManyRequests", TooManyRequests),
        (502, None, Unavailable),
        (503, "ServiceUnavailable", Unavailable),
        (500, "InternalError", LatticeError),
    ],
)
def test_http_statuses_map_to_lattice_errors(status, reason, kind):
    found = error_from_status(
        status,
        {
            "reason": reason,
            "message": "no (fix: do)",
            "details": {"causes": [{"field": "a", "message": "b"}]},
        },
    )
    assert type(found) is kind
    assert (found.message, found.fix, str(found.causes[0])) == ("no", "do", "a: b")


def test_retry_after_is_followed(server, lattice):
    busy = (429, [("Retry-After", "0")], {"reason": "TooManyRequests", "message": "slow down"})
    server.answers["GET", "/version"] = [busy, busy]
    assert "v1.33.0+lattice" in lattice("version").out


def test_token_is_sent_and_unauthorized_is_reported(server, lattice):
    server.answers["GET", "/version"] = [(401, [], {"reason": "Unauthorized", "message": "who are you?"})]
    ran = lattice("version")
    assert ran.code == 4
    assert ran.err == "error: who are you?\n  fix: check the token or certificate in your kubeconfig\n"


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1m30s", 90), ("500ms", 0.5), ("2h", 7200), ("0", 0), ("1.5s", 1.5)]
)
def test_durations(text, seconds):
    assert Duration().convert(text, None, None) == seconds
