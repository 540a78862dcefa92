"""Requests, output and exit code of each command."""

import io
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

POOLS = "/apis/lattice.dev/v1alpha1/latticepools"
CLUSTERS = "/apis/lattice.dev/v1alpha1/latticeclusters"
SERVICES = "/apis/lattice.dev/v1alpha1/namespaces/default/latticeservices"


def a_stored_pool(name="us-east", size=3, **labels):
    metadata = {"name": name} | ({"labels": labels} if labels else {})
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticePool",
        "metadata": metadata,
        "spec": {"size": size},
    }


def a_stored_service(name="api", namespace="default"):
    metadata = {"name": name, "namespace": namespace}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "LatticeService",
        "metadata": metadata,
        "spec": {"size": 1},
    }


def write(folder, name, *objects):
    (folder / name).write_text("---\n".join(json.dumps(o, indent=2) + "\n" for o in objects))
    return str(folder / name)


def test_apply_prints_created_unchanged_configured(server, lattice, tmp_path):
    file = write(tmp_path, "pool.yaml", a_stored_pool())
    assert lattice("apply", "-f", file) == (0, "latticepool.lattice.dev/us-east created\n", "")
    assert lattice("apply", "-f", file).out == "latticepool.lattice.dev/us-east unchanged\n"
    write(tmp_path, "pool.yaml", a_stored_pool(size=4))
    assert lattice("apply", "-f", file).out == "latticepool.lattice.dev/us-east configured\n"
    assert server.log[-1] == (
        "PATCH",
        f"{POOLS}/us-east",
        {"fieldManager": "lattice", "fieldValidation": "Strict"},
    )


def test_apply_of_a_folder_sends_namespaces_first(server, lattice, tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder, "1.yaml", a_stored_pool(), a_stored_service())
    write(folder, "2.json", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    write(folder, "readme.txt", a_stored_pool("ignored"))
    ran = lattice("apply", "-f", str(folder))
    assert ran.out.splitlines() == [
        "namespace/shop created",
        "latticepool.lattice.dev/us-east created",
        "latticeservice.lattice.dev/api created",
    ]
    assert ran.err == "3 created\n"


def test_a_mistake_in_any_file_sends_nothing(server, lattice, tmp_path):
    good = write(tmp_path, "a.yaml", a_stored_pool())
    (tmp_path / "b.yaml").write_text("kind: LatticePool\nkind: LatticePool\n")
    ran = lattice("apply", "-f", good, "-f", str(tmp_path / "b.yaml"))
    assert ran == (
        1,
        "",
        f'error: {tmp_path}/b.yaml:2: the key "kind" appears twice, first on line 1\n  fix: keep one of the two keys\n',
    )
    assert server.log == []


@pytest.mark.parametrize(
    ("manifest", "problem"),
    [
        pytest.param("kind: LatticePool\n", "f.yaml:1: apiVersion is missing", id="no apiVersion"),
        pytest.param(
            "apiVersion: v1\n\nkind: Pod\nmetadata: {name: a}\n",
            "f.yaml:3: there is no kind 'Pod' in v1",
            id="a kind we do not have",
        ),
        pytest.param(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  labels: {}\n",
            "f.yaml:3: metadata.name is missing",
            id="no name",
        ),
        pytest.param(
            "apiVersion: v1\nkind: LatticePool\nmetadata: {name: a}\n",
            "there is no LatticePool in v1",
            id="the wrong apiVersion",
        ),
        pytest.param("# nothing\n", "f.yaml: the file contains no manifest", id="an empty file"),
    ],
)
def test_apply_validates_before_any_request(server, lattice, tmp_path, manifest, problem):
    (tmp_path / "f.yaml").write_text(manifest)
    ran = lattice("apply", "-f", "f.yaml")
    assert ran.code == 1
    assert problem in ran.err
    assert server.log == []


def test_apply_rejection_names_line_and_continues_with_rest(server, lattice, tmp_path):
    causes = [{"field": "spec.size", "message": "must be 0 or more, got -5", "reason": "FieldValueInvalid"}]
    status = {
        "reason": "Invalid",
        "message": "LatticePool us-east is invalid: spec.size: must be ...",
        "details": {"causes": causes},
    }
    server.answers["PATCH", f"{POOLS}/us-east"] = [(422, [], status)]
    write(tmp_path, "p.yaml", a_stored_pool(size=-5), a_stored_pool("eu-west"))
    ran = lattice("apply", "-f", "p.yaml")
    assert ran.code == 1
    assert ran.out == "latticepool.lattice.dev/eu-west created\n"
    assert (
        "error: p.yaml:1: latticepool.lattice.dev/us-east is invalid\n  p.yaml:8: spec.size: must be 0 or more, got -5\n"
        in ran.err
    )
    assert ran.err.endswith("1 created, 1 failed\n")


def test_dry_runs_change_nothing(server, lattice, tmp_path):
    file = write(tmp_path, "p.yaml", a_stored_pool())
    assert (
        lattice("apply", "--dry-run", "-f", file).out
        == "latticepool.lattice.dev/us-east created (server dry run)\n"
    )
    assert server.log[-1][2]["dryRun"] == "All"
    assert server.objects == {}


def test_manifests_can_be_checked_without_a_server(lattice, tmp_path, monkeypatch):
    monkeypatch.delenv("LATTICE_KUBECONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    value = a_stored_pool()
    value["spec"] = {"provider": {"type": "aws", "region": "us-east-1"}, "capacity": {"maxNodes": 3}}
    write(tmp_path, "p.yaml", value)
    assert lattice("apply", "--dry-run=client", "-f", "p.yaml") == (
        0,
        "latticepool.lattice.dev/us-east checked (dry run)\n",
        "",
    )
    value["spec"]["capacity"]["maxNodes"] = -3
    write(tmp_path, "p.yaml", value)
    ran = lattice("apply", "--dry-run=client", "-f", "p.yaml")
    assert ran.code == 1
    assert (
        "error: p.yaml:1: latticepool.lattice.dev/us-east is invalid\n  p.yaml:13: spec.capacity.maxNodes: "
        in ran.err
    )


def test_objects_go_to_the_requested_namespace(server, lattice, tmp_path):
    value = a_stored_service()
    del value["metadata"]["namespace"]
    file = write(tmp_path, "s.yaml", value)
    lattice("apply", "-f", file, "-n", "shop")
    assert list(server.objects) == ["/apis/lattice.dev/v1alpha1/namespaces/shop/latticeservices/api"]
    file = write(tmp_path, "s.yaml", a_stored_service(namespace="other"))
    assert "is in namespace other, but -n says shop" in lattice("apply", "-f", file, "-n", "shop").err


def test_manifests_come_from_urls_subfolders_and_stdin(server, lattice, tmp_path, monkeypatch):
    server.answers["GET", "/pool.yaml"] = [(200, [], a_stored_pool("far"))]
    assert lattice("apply", "-f", f"{server.url}/pool.yaml").out == "latticepool.lattice.dev/far created\n"
    ran = lattice("apply", "-f", f"{server.url}/missing")
    assert (ran.code, "cannot be downloaded: Not Found" in ran.err) == (3, True)
    (tmp_path / "a" / "b").mkdir(parents=True)
    write(tmp_path / "a" / "b", "deep.yml", a_stored_pool("deep"))
    assert "-R includes subfolders" in lattice("apply", "-f", "a").err
    assert lattice("apply", "-R", "-f", "a", "-o", "name").out == "latticepool.lattice.dev/deep\n"
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(a_stored_pool("piped")).encode()))
    )
    assert json.loads(lattice("apply", "-f", "-", "-o", "json").out)["metadata"]["name"] == "piped"


def test_warnings_of_the_server_are_shown(server, lattice, tmp_path):
    server.answers["PATCH", f"{POOLS}/us-east"] = [
        (201, [("Warning", '299 - "unknown field \\"spec.x\\""')], a_stored_pool())
    ]
    assert (
        lattice("apply", "-f", write(tmp_path, "p.yaml", a_stored_pool())).err
        == 'Warning: unknown field "spec.x"\n'
    )


def test_get_draws_the_servers_table(server, lattice):
    server.put(f"{POOLS}/us-east", a_stored_pool(env="prod"))
    server.put(f"{POOLS}/b", a_stored_pool("b", 12))
    assert lattice("get", "pools").out == "NAME      SIZE\nb         12\nus-east   3\n"
    assert lattice("get", "pools", "-o", "wide", "--no-headers").out == "b         12   -\nus-east   3    -\n"
    assert (
        lattice("get", "lp", "--show-labels", "-l", "env=prod").out
        == "NAME      SIZE   LABELS\nus-east   3      env=prod\n"
    )
    assert lattice("get", "pools", "--sort-by=.spec.size").out.splitlines()[1:] == [
        "us-east   3",
        "b         12",
    ]
    assert lattice("get", "pool/b").out == "NAME   SIZE\nb      12\n"


def test_get_pages_through_long_lists(server, lattice):
    for i in range(7):
        server.put(f"{POOLS}/p{i}", a_stored_pool(f"p{i}"))
    assert len(lattice("get", "pools", "--no-headers", "--chunk-size=3").out.splitlines()) == 7
    assert [q.get("continue") for _, _, q in server.log] == [None, "3", "6"]


def test_get_of_several_kinds_and_namespaces(server, lattice):
    server.put(f"{POOLS}/us-east", a_stored_pool())
    server.put(f"{SERVICES}/api", a_stored_service())
    ran = lattice("get", "pools,services", "-A")
    assert ran.out == (
        "NAME                              SIZE\nlatticepool.lattice.dev/us-east   3\n\n"
        "NAMESPACE   NAME                             SIZE\ndefault     latticeservice.lattice.dev/api   1\n"
    )


def test_get_of_an_empty_list_is_no_error(server, lattice):
    assert lattice("get", "services") == (0, "", "No resources found in default namespace.\n")
    assert lattice("get", "pools") == (0, "", "No resources found\n")
    ran = lattice("get", "pool", "nope")
    assert (ran.code, ran.err) == (
        1,
        'error: latticepools "nope" not found\n  fix: `lattice get latticepools` lists the existing objects\n',
    )
    assert lattice("get", "pool", "nope", "--ignore-not-found") == (0, "", "")


def test_get_output_formats(server, lattice):
    server.put(f"{POOLS}/us-east", a_stored_pool())
    assert lattice("get", "pools", "-o", "name").out == "latticepool.lattice.dev/us-east\n"
    assert lattice("get", "pools", "-o", "jsonpath={.items[*].spec.size}").out == "3"
    shown = json.loads(lattice("get", "pool", "us-east", "-o=json").out)
    assert shown["spec"] == {"size": 3}
    assert "managedFields" not in shown["metadata"]
    assert "managedFields" in lattice("get", "pool", "us-east", "-o", "yaml", "--show-managed-fields").out
    assert lattice("get", "pools", "-o", "yaml").out.startswith(
        "apiVersion: v1\nitems:\n- apiVersion: lattice.dev/v1alpha1\n"
    )


def test_get_yaml_output_can_be_reapplied(server, lattice, tmp_path):
    server.put(f"{POOLS}/us-east", a_stored_pool())
    (tmp_path / "again.yaml").write_text(lattice("get", "pools", "-o", "yaml").out)
    assert lattice("apply", "-f", "again.yaml").out == "latticepool.lattice.dev/us-east unchanged\n"


def start(server, *arguments):
    environment = {**os.environ, "LATTICE_KUBECONFIG": server.kubeconfig}
    environment.pop(
        "PYTHONUNBUFFERED", None
    )  # Python loses the rest of a partial write then, and with it the error
    command = [sys.executable, "-m", "lattice.cli.main", *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


@pytest.mark.parametrize(
    "cut", [pytest.param(False, id="on one stream"), pytest.param(True, id="after every connection breaks")]
)
def test_get_watch_shows_every_change(server, cut):
    server.cut_watches = cut
    server.put(f"{POOLS}/a", a_stored_pool("a", 1))
    process = start(server, "get", "pools", "-w")
    guard = threading.Timer(30, process.kill)
    guard.start()
    try:
        assert [process.stdout.readline() for _ in range(2)] == ["NAME   SIZE\n", "a      1\n"]
        server.put(f"{POOLS}/a", a_stored_pool("a", 2))
        assert process.stdout.readline() == "a      2\n"
        server.put(f"{POOLS}/b", a_stored_pool("b", 3))
        assert process.stdout.readline() == "b      3\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert "Traceback" not in process.stderr.read()
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def test_expired_watch_relists_and_shows_new_objects(server):
    server.put(f"{POOLS}/a", a_stored_pool("a", 1))
    gone = {
        "type": "ERROR",
        "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"},
    }
    listed = {"metadata": {"resourceVersion": "1"}, "columnDefinitions": [{"name": "Name"}], "rows": []}
    server.answers["GET", POOLS] = [(200, [], listed), (200, [], gone)]
    process = start(server, "get", "pools", "-w")
    guard = threading.Timer(30, process.kill)
    guard.start()
    try:
        assert process.stdout.readline() == "NAME   SIZE\n"
        assert process.stdout.readline() == "a      1\n"
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def test_closed_pipe_ends_with_sigpipe_code(server):
    for i in range(3000):
        server.objects[f"{POOLS}/p{i}"] = {
            **a_stored_pool(f"p{i}" + "x" * 60),
            "metadata": {"name": f"p{i}" + "x" * 60},
        }
    process = start(server, "get", "pools", "-o", "yaml")
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(30) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_stream_is_no_error(server, closed):
    server.put(f"{POOLS}/a", a_stored_pool("a"))
    environment = {**os.environ, "LATTICE_KUBECONFIG": server.kubeconfig}
    command = f'"{sys.executable}" -m lattice.cli.main get pools,services {closed}'
    ran = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, env=environment, timeout=30
    )
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert ("NAME" in ran.stdout) is (closed in ("<&-", "2>&-"))


def test_delete_waits_until_it_is_gone(server, lattice):
    server.put(f"{POOLS}/a", a_stored_pool("a"))
    assert lattice("delete", "pool", "a") == (0, 'latticepool.lattice.dev "a" deleted\n', "")
    assert [(method, path) for method, path, _ in server.log] == [
        ("GET", CLUSTERS),
        ("DELETE", f"{POOLS}/a"),
        ("GET", f"{POOLS}/a"),
    ]
    assert lattice("delete", "pool", "a").code == 1
    assert lattice("delete", "pool", "a", "--ignore-not-found") == (0, "", "")


@pytest.mark.parametrize(("flags", "was"), [(["--dry-run"], " (server dry run)"), ([], "")])
def test_delete_of_a_pool_in_use_warns_of_running_machines(server, lattice, flags, was):
    server.put(f"{POOLS}/a", a_stored_pool("a"))
    for name, pool in (("a-001", "a"), ("b-001", "b")):
        status = {"cost": {"hourly": 0.048}}
        server.put(
            f"{CLUSTERS}/{name}",
            {"metadata": {"name": name}, "spec": {"pool": pool, "nodes": {"m": 2}}, "status": status},
        )
    placements = [
        {"pool": "a", "cluster": "a-001", "replicas": 3},
        {"pool": "b", "cluster": "b-001", "replicas": 1},
    ]
    web = {"metadata": {"name": "web", "namespace": "shop"}, "status": {"placements": placements}}
    server.put("/apis/lattice.dev/v1alpha1/namespaces/shop/latticeservices/web", web)
    ran = lattice("delete", "pool", "a", *flags)
    assert (ran.code, ran.out) == (0, f'latticepool.lattice.dev "a" deleted{was}\n')
    assert ran.err == (
        "Warning: latticepool/a is in use: 2 machines in a-001 with 3 replicas of shop/web keep running and cost $0.048/h, $34.56/30d; "
        "if another pool accepts them, `lattice drain -l lattice.dev/cluster=a-001` moves them\n"
    )


@pytest.mark.parametrize(
    ("replicas", "whose", "way"),
    [
        (
            1,
            "1 replica of shop/web",
            "if another pool accepts it, `lattice drain -l lattice.dev/cluster=a-001` moves it",
        ),
        (
            0,
            "no replica of a service",
            "Lattice removes empty machines soon, unless minNodes requires the machines",
        ),
    ],
)
def test_delete_warning_uses_the_singular(server, lattice, replicas, whose, way):
    server.put(f"{POOLS}/a", a_stored_pool("a"))
    cluster = {
        "metadata": {"name": "a-001"},
        "spec": {"pool": "a", "nodes": {"m": 1}},
        "status": {"cost": {"hourly": 0.048}},
    }
    server.put(f"{CLUSTERS}/a-001", cluster)
    placements = [{"pool": "a", "cluster": "a-001", "replicas": replicas}]
    web = {"metadata": {"name": "web", "namespace": "shop"}, "status": {"placements": placements}}
    server.put("/apis/lattice.dev/v1alpha1/namespaces/shop/latticeservices/web", web)
    cost = "keeps running and costs $0.048/h, $34.56/30d"
    assert (
        lattice("delete", "pool", "a").err
        == f"Warning: latticepool/a is in use: 1 machine in a-001 with {whose} {cost}; {way}\n"
    )


def test_delete_warning_omits_forbidden_objects(server, lattice):
    server.put(f"{POOLS}/a", a_stored_pool("a"))
    server.answers["GET", CLUSTERS] = [(403, [], {"reason": "Forbidden", "message": "you may not"})]
    assert lattice("delete", "pool", "a") == (0, 'latticepool.lattice.dev "a" deleted\n', "")


def test_delete_by_selector_by_manifest_and_dry_run(server, lattice, tmp_path):
    server.put(f"{POOLS}/a", a_stored_pool("a", env="x"))
    server.put(f"{POOLS}/b", a_stored_pool("b", env="y"))
    assert (
        lattice("delete", "pools", "-l", "env=x", "--dry-run").out
        == 'latticepool.lattice.dev "a" deleted (server dry run)\n'
    )
    assert (
        lattice("delete", "pools", "-l", "env=x", "--wait=false", "-o", "name").out
        == "latticepool.lattice.dev/a\n"
    )
    assert (
        lattice("delete", "-f", write(tmp_path, "b.yaml", a_stored_pool("b"))).out
        == 'latticepool.lattice.dev "b" deleted\n'
    )
    assert lattice("delete", "pools", "--all") == (0, "", "No resources found\n")
    assert server.objects == {}


def test_delete_continues_after_a_refusal(server, lattice):
    server.put(f"{POOLS}/b", a_stored_pool("b"))
    server.answers["DELETE", f"{POOLS}/a"] = [(403, [], {"reason": "Forbidden", "message": "you may not"})]
    ran = lattice("delete", "pools", "a", "b")
    assert ran.code == 4
    assert ran.out == 'latticepool.lattice.dev "b" deleted\n'


def an_event(name, reason, last, **more):
    about = {"kind": "LatticePool", "name": "us-east", "uid": more.pop("uid", "u")}
    metadata = {"name": name, "namespace": "default", "uid": name}
    return {
        "metadata": metadata,
        "involvedObject": about,
        "reason": reason,
        "type": "Normal",
        "message": "it\x1b[31m did",
        "lastTimestamp": last,
        **more,
    }


def test_events_are_oldest_first_without_control_characters(server, lattice):
    base = "/api/v1/namespaces/default/events"
    server.put(
        f"{base}/2",
        an_event("2", "Later", "2026-11-15T07:50:00Z", count=3, firstTimestamp="2026-11-15T07:40:00Z"),
    )
    server.put(f"{base}/1", an_event("1", "Sooner", "2026-11-15T07:41:00Z", type="Warning"))
    lines = lattice("events", "--for", "pool/us-east").out.splitlines()
    # Events of a cluster-scoped object may be in several namespaces.
    assert lines[0].split() == ["NAMESPACE", "LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
    assert ["Sooner" in lines[1], "Later" in lines[2], "x3 over" in lines[2]] == [True] * 3
    assert "it?[31m did" in lines[1]
    assert len(lattice("events", "--types", "warning").out.splitlines()) == 2
    assert lattice("events", "--for", "pool/other").err == "No events found\n"
    assert json.loads(lattice("events", "-o", "json").out)["items"][0]["reason"] == "Sooner"


def test_event_watch_begins_with_the_header(server):
    process = start(server, "events", "-w")
    guard = threading.Timer(30, process.kill)
    guard.start()
    try:
        heads = process.stdout.readline()
        assert heads.split() == ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]
        server.put("/api/v1/namespaces/default/events/1", an_event("1", "Grew", "2026-11-15T07:41:00Z"))
        line = process.stdout.readline()
        assert line.index("Grew") == heads.index("REASON")
        server.put("/api/v1/namespaces/default/events/2", an_event("2", "W" * 80, "2026-11-15T07:42:00Z"))
        assert f"{'W' * 80}   latticepool/us-east" in process.stdout.readline()
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


def test_describe_shows_every_section(server, lattice):
    conditions = [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Up",
            "message": "all well",
            "lastTransitionTime": "2026-11-15T07:40:00Z",
        }
    ]
    spec = {
        "maxNodes": 3,
        "nodeClasses": ["small", "large"],
        "budget": {"maxMonthlyCost": 10.5},
        "rules": [{"a": 1, "b": 2}],
        "note": "x\ny",
    }
    server.put(
        f"{POOLS}/us-east",
        {
            **a_stored_pool(env="prod", team="a"),
            "spec": spec,
            "status": {"phase": "Ready", "conditions": conditions},
        },
    )
    uid = server.objects[f"{POOLS}/us-east"]["metadata"]["uid"]
    server.put("/api/v1/namespaces/default/events/1", an_event("1", "Grew", "2026-11-15T07:41:00Z", uid=uid))
    text = lattice("describe", "pool", "us-east").out
    assert text.startswith(
        "Name:         us-east\nLabels:       env=prod\n              team=a\nAnnotations:  <none>\n"
    )
    assert (
        "Spec:\n  maxNodes:  3\n  nodeClasses:  small, large\n  budget:\n    maxMonthlyCost:  10.5\n" in text
    )
    assert (
        "  rules:\n    - a:  1\n      b:  2\n  note:\n    x\n    y\nStatus:\n  phase:  Ready\nConditions:\n  Type    Status"
        in text
    )
    assert "Events:\n  Type     Reason   Age" in text
    assert "Grew" in text
    assert lattice("describe", "pool", "nope").code == 1


def test_describe_hides_secret_values(server, lattice):
    server.put(
        "/api/v1/namespaces/default/secrets/key",
        {"kind": "Secret", "metadata": {"name": "key"}, "data": {"token": "aHVudGVyMg=="}},
    )
    text = lattice("describe", "secret", "key").out
    assert "Data:\n  token:  7 bytes\n" in text
    assert "aHVudGVyMg" not in text


def test_version(server, lattice):
    assert lattice("version").out.splitlines()[1] == "Server Version: v1.33.0+lattice"
    assert list(json.loads(lattice("version", "--client", "-o", "json").out)) == ["clientVersion"]


def test_crds_need_no_server_and_are_deterministic(lattice, monkeypatch):
    monkeypatch.delenv("LATTICE_KUBECONFIG", raising=False)
    first = lattice("crds").out
    assert first == lattice("crds").out
    names = lattice("crds", "-o", "name").out.splitlines()
    assert names == sorted(names)
    assert "customresourcedefinition.apiextensions.k8s.io/latticepools.lattice.dev" in names
    assert lattice("crds", "pools", "-o", "name").out.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(lattice, shell):
    assert "_LATTICE_COMPLETE" in lattice("completion", shell).out
