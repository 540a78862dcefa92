"""Wrong command lines exit with 2 before any request; a rejected request exits with the code of its error."""

import json

import pytest

from tests.cli.test_commands import POOLS, SERVICES, a_stored_pool, a_stored_service, write

SECRETS = "/api/v1/namespaces/lattice-system/secrets"
pytestmark = pytest.mark.timeout(20)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """A server that starts although it should not leaves its files there."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        pytest.param(["delete"], "no objects are named", id="delete of nothing"),
        pytest.param(["delete", "pools"], "no names are given", id="delete of a kind without names"),
        pytest.param(
            ["delete", "pool", "lab", "-l", "a=b"],
            "a name cannot be combined with -l or --all",
            id="delete by name and rule",
        ),
        pytest.param(
            ["delete", "pools", "--all", "-l", "a=b"],
            "--all and -l cannot be combined",
            id="delete by two rules",
        ),
        pytest.param(
            ["delete", "pool", "a", "-f", "x.yaml"],
            "-f cannot be combined with",
            id="delete by name and manifest",
        ),
        pytest.param(
            ["get", "pools", "a", "-l", "x=y"],
            "a name cannot be combined with a selector",
            id="get by name and selector",
        ),
        pytest.param(["get", "pools,services", "-w"], "only one kind", id="watch of two kinds"),
        pytest.param(
            ["get", "pool/lab", "services"], "'services' is not kind/name", id="two ways of naming at once"
        ),
        pytest.param(["get", "all/x"], "means several kinds", id="a name of several kinds"),
        pytest.param(["events", "--for", "web"], "'web' is not kind/name", id="events for a bare name"),
        pytest.param(["events", "--for", "pools"], "'pools' is not kind/name", id="events for a kind"),
        pytest.param(
            ["events", "--types", "Foo"], "there is no event type 'Foo'", id="an unknown type of event"
        ),
        pytest.param(
            ["tokens", "create", "--ttl", "25h", "--long-lived"],
            "at most 24h",
            id="a token for longer than a day",
        ),
        pytest.param(
            ["tokens", "create", "--ttl", "16m"],
            "longer than 15 minutes may leak",
            id="a token that lives long by mistake",
        ),
        pytest.param(["tokens", "create", "--ttl", "0s"], "above 0s", id="a token that was never good"),
        pytest.param(
            ["kubeconfig", "--group", "lattice:viewers"],
            "--group needs --user",
            id="a group without a user",
        ),
        pytest.param(["kubeconfig", "--token"], "--token needs --user", id="a token without a user"),
        pytest.param(
            ["kubeconfig", "--user", "", "--group", "lattice:viewers"],
            "a user needs a name",
            id="an empty user with a group",
        ),
        pytest.param(["kubeconfig", "--user", ""], "a user needs a name", id="an empty user"),
        pytest.param(
            ["kubeconfig", "--user", "bob"], "user bob would be in no group", id="a user in no group"
        ),
        pytest.param(
            ["kubeconfig", "--user", "bob", "--group", ""],
            "user bob would be in no group",
            id="a group without a name",
        ),
    ],
)
def test_wrong_command_lines_exit_with_2_without_a_request(server, lattice, arguments, problem):
    ran = lattice(*arguments)
    assert ran.code == 2
    assert problem in ran.err
    assert "fix:" in ran.err
    assert ran.out == ""
    assert server.log == []


@pytest.mark.parametrize("command", ["up", "server"])
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        pytest.param(["--store", "bogus://x"], "'bogus://x' is not a store", id="no such store"),
        pytest.param(["--port", "65536"], "must be 0 to 65535, got 65536", id="a port too high"),
        pytest.param(["--port", "-1"], "must be 0 to 65535, got -1", id="a port below zero"),
        pytest.param(["--port", "http"], "must be 0 to 65535, got http", id="a port that is no number"),
        pytest.param(["--data-dir", ""], "must name a folder", id="an empty data folder"),
    ],
)
def test_settings_are_checked_at_the_command_line(lattice, command, flags, problem):
    ran = lattice(command, *flags)
    assert ran.code == 2
    assert problem in ran.err


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        *[
            pytest.param(["--lease-ttl", v], f"must be 1 or more seconds, got {v}", id=f"a lease of {v}")
            for v in ("0.5", "-1", "inf", "nan")
        ],
        *[
            pytest.param(["--history", v], f"must be 0 or more seconds, got {v}", id=f"a history of {v}")
            for v in ("-1", "inf", "nan", "x")
        ],
        *[
            pytest.param(["--event-ttl", v], f"must be more than 0 seconds, got {v}", id=f"events for {v}")
            for v in ("0", "-1", "inf")
        ],
    ],
)
def test_times_of_a_server_are_checked_at_the_command_line(lattice, flags, problem):
    ran = lattice("server", *flags)
    assert ran.code == 2
    assert problem in ran.err


def test_settings_in_the_environment_are_checked_too(lattice, monkeypatch):
    monkeypatch.setenv("LATTICE_PORT", "70000")
    ran = lattice("up")
    assert ran.code == 2
    assert "must be 0 to 65535, got 70000" in ran.err


def test_apply_has_no_validate_flag(lattice):
    assert lattice("apply", "-f", "x.yaml", "--validate=ignore").code == 2


@pytest.mark.parametrize(
    ("group", "words"),
    [
        pytest.param("guests", "group guests can do nothing", id="an unknown group"),
        pytest.param(
            "lattice:system", "lattice:system is Lattice's own identity", id="the identity of Lattice itself"
        ),
        pytest.param("lattice:viewers", "", id="a group that is known"),
    ],
)
def test_unlikely_groups_cause_a_warning(server, lattice, group, words):
    server.answers["POST", SECRETS] = [(201, [], {})]
    ran = lattice("kubeconfig", "--user", "ann", "--group", group, "--token")
    assert ran.code == 0
    assert "user: ann" in ran.out
    assert words in ran.err
    assert bool(ran.err) is bool(words)


def test_the_help_names_the_groups(lattice):
    text = " ".join(lattice("kubeconfig", "--help").out.split())
    assert all(group in text for group in ("lattice:admins", "lattice:viewers", "lattice:system"))


FORBIDDEN = (403, [], {"reason": "Forbidden", "message": "you may not"})
FULL = (507, [], {"reason": "StorageFull", "message": "the disk is full"})
INVALID = (422, [], {"reason": "Invalid", "message": "wrong"})


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        pytest.param({"a": FORBIDDEN}, 4, id="one forbidden"),
        pytest.param({"a": FORBIDDEN, "b": FORBIDDEN}, 4, id="all forbidden"),
        pytest.param({"b": FULL}, 3, id="no room"),
        pytest.param({"a": INVALID}, 1, id="one invalid"),
        pytest.param({"a": FORBIDDEN, "b": FULL}, 1, id="several kinds of trouble"),
    ],
)
def test_apply_and_delete_exit_with_the_code_of_the_refusal(server, lattice, tmp_path, answers, code):
    file = write(tmp_path, "p.yaml", a_stored_pool("a"), a_stored_pool("b"), a_stored_pool("c"))
    for name, answer in answers.items():
        server.answers["PATCH", f"{POOLS}/{name}"] = [answer]
        server.answers["DELETE", f"{POOLS}/{name}"] = [answer]
    assert lattice("apply", "-f", file).code == code
    for name in "abc":
        server.put(f"{POOLS}/{name}", a_stored_pool(name))
    assert lattice("delete", "pools", "a", "b", "c").code == code


def test_apply_conflict_names_the_manager_and_the_fix(server, lattice, tmp_path):
    cause = {
        "field": ".spec.size",
        "message": 'conflict with "kubectl" using v1',
        "reason": "FieldManagerConflict",
    }
    status = {
        "reason": "Conflict",
        "message": 'Apply failed with 1 conflict: conflict with "kubectl" using v1: .spec.size',
        "details": {"causes": [cause]},
    }
    server.answers["PATCH", f"{POOLS}/us-east"] = [(409, [], status)]
    write(tmp_path, "p.yaml", a_stored_pool())
    ran = lattice("apply", "-f", "p.yaml")
    assert ran.code == 1
    assert ran.err.count("kubectl") == 1
    assert ran.err.startswith(
        "error: p.yaml:1: latticepool.lattice.dev/us-east: 1 field is managed by another field manager\n"
    )
    assert '\n  p.yaml:8: spec.size: conflict with "kubectl" using v1\n' in ran.err
    assert "fix: take it over with --force-conflicts" in ran.err


def test_every_unreadable_file_is_named_and_nothing_is_sent(server, lattice, tmp_path):
    folder = tmp_path / "shop"
    folder.mkdir()
    write(folder, "a.yaml", a_stored_pool())
    (folder / "b.yaml").write_text("kind: LatticePool\nkind: LatticePool\n")
    (folder / "c.yaml").write_text("a: 1\n b: [\n")
    (folder / "d.yaml").write_text(
        "apiVersion: v1\n\nkind: Pod\nmetadata: {name: a}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {}\n"
    )
    ran = lattice("apply", "-f", "shop", "-f", "nowhere.yaml")
    assert ran.code == 1
    assert ran.err.startswith("error: 5 manifests are invalid; nothing was sent\n")
    told = [line.strip() for line in ran.err.splitlines()[1:]]
    for place in (
        "shop/b.yaml:2: ",
        "shop/c.yaml:2: ",
        "shop/d.yaml:3: ",
        "shop/d.yaml:8: ",
        "nowhere.yaml: ",
    ):
        assert [line for line in told if line.startswith(place)], ran.err
    assert server.log == []


def test_namespace_mismatch_is_found_before_any_request(server, lattice, tmp_path):
    value = a_stored_service("fine", "shop")
    write(tmp_path, "s.yaml", a_stored_pool(), value, a_stored_service(namespace="other"))
    ran = lattice("apply", "-f", "s.yaml", "-n", "shop")
    assert ran.code == 1
    assert "is in namespace other, but -n says shop" in ran.err
    assert server.log == []


def test_causes_are_listed_in_file_order(server, lattice, tmp_path):
    causes = [{"field": f, "message": "wrong"} for f in ("spec.size", "metadata.name", "apiVersion")]
    server.answers["PATCH", f"{POOLS}/us-east"] = [
        (422, [], {"reason": "Invalid", "message": "is wrong", "details": {"causes": causes}})
    ]
    write(tmp_path, "p.yaml", a_stored_pool())
    told = lattice("apply", "-f", "p.yaml").err.splitlines()[1:]
    assert [line.split(":")[1] for line in told] == ["2", "5", "8"]


def doomed(server, path, value, **metadata):
    """An object whose deletion is accepted and that stays."""
    value = {
        **value,
        "metadata": {
            **value["metadata"],
            "uid": "u",
            "deletionTimestamp": "2026-11-15T07:40:00Z",
            **metadata,
        },
    }
    server.put(path, value)
    server.answers["DELETE", path] = [(200, [], server.objects[path])]


def test_delete_timeout_names_the_finalizers(server, lattice):
    doomed(server, f"{POOLS}/a", a_stored_pool("a"), finalizers=["shop.example/hold", "foregroundDeletion"])
    doomed(server, f"{POOLS}/b", a_stored_pool("b"))
    ran = lattice("delete", "pools", "a", "b", "--timeout", "50ms")
    assert ran.code == 3
    first, second = (line for line in ran.err.splitlines() if line.startswith("error:"))
    assert (
        'latticepool.lattice.dev "a" is not gone yet: waiting for finalizers shop.example/hold, foregroundDeletion'
        in first
    )
    assert 'latticepool.lattice.dev "b" is not gone yet' in second


def test_namespace_delete_timeout_names_the_remaining_objects(server, lattice):
    conditions = [
        {
            "type": "NamespaceContentRemaining",
            "status": "True",
            "message": "some resources remain: 2 configmaps",
        },
        {"type": "Old", "status": "False", "message": "not this"},
    ]
    value = {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": "shop"},
        "status": {"conditions": conditions},
    }
    doomed(server, "/api/v1/namespaces/shop", value)
    ran = lattice("delete", "ns", "shop", "--timeout", "50ms")
    assert 'namespace "shop" is not gone yet: some resources remain: 2 configmaps\n' in ran.err


def test_long_delete_says_once_what_it_waits_for(server, lattice, monkeypatch):
    monkeypatch.setattr("lattice.cli.commands.delete.QUIET_WAIT_S", 0.01)
    doomed(server, f"{POOLS}/a", a_stored_pool("a"), finalizers=["shop.example/hold"])
    ran = lattice("delete", "pool", "a", "--timeout", "200ms")
    assert (
        ran.err.count('waiting for latticepool.lattice.dev "a": waiting for finalizers shop.example/hold\n')
        == 1
    )


def test_not_found_fix_keeps_the_namespace(server, lattice):
    server.answers["GET", SERVICES.replace("default", "team") + "/nope"] = [
        (
            404,
            [],
            {
                "reason": "NotFound",
                "message": "no",
                "details": {"kind": "latticeservices", "group": "lattice.dev", "name": "nope"},
            },
        )
    ]
    assert (
        "fix: `lattice get latticeservices.lattice.dev -n team` lists"
        in lattice("get", "service", "nope", "-n", "team").err
    )


def test_unreachable_address_error_names_its_variable(lattice, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LATTICE_KUBECONFIG", raising=False)
    monkeypatch.setenv("LATTICE_ADDR", "zzz.invalid")
    ran = lattice("get", "pools")
    assert ran.code == 3
    assert "kubeconfig" not in ran.err
    assert "LATTICE_ADDR" in ran.err


def test_missing_file_error_names_no_flag(lattice):
    ran = lattice("apply", "-f", "nowhere.yaml")
    assert ran.err.splitlines()[0] == "error: nowhere.yaml: cannot be read: no such file or directory"


def test_help_of_get_lists_the_kinds(lattice):
    assert "lattice get --help" in lattice("get", "zzzzzz").err
    text = lattice("get", "--help").out
    assert all(kind in text for kind in ("pools", "services", "nodeclasses", "configmaps"))


def test_empty_cells_are_none_and_deleted_rows_terminating(server, lattice):
    columns = [{"name": n} for n in ("Name", "Size", "Note", "Phase")]
    stays = {"cells": ["a", None, "", ""], "object": {"metadata": {"name": "a"}}}
    goes = {
        "cells": ["b", 0, "x", "Ready"],
        "object": {"metadata": {"name": "b", "deletionTimestamp": "2026-11-15T07:40:00Z"}},
    }
    server.answers["GET", POOLS] = [
        (200, [], {"metadata": {}, "columnDefinitions": columns, "rows": [stays, goes]})
    ]
    assert [line.split() for line in lattice("get", "pools").out.splitlines()[1:]] == [
        ["a", "<none>", "<none>", "<none>"],
        ["b", "0", "x", "Terminating"],
    ]


def test_describe_omits_the_last_applied_annotation(server, lattice):
    key = "kubectl.kubernetes.io/last-applied-configuration"
    secret = {
        "kind": "Secret",
        "metadata": {
            "name": "key",
            "annotations": {key: json.dumps({"data": {"t": "aHVudGVyMg=="}}), "a": "b"},
        },
    }
    server.put("/api/v1/namespaces/default/secrets/key", secret)
    text = lattice("describe", "secret", "key").out
    assert key not in text
    assert "aHVudGVyMg" not in text
    assert "Annotations:  a: b" in text
