"""Words and files that users bring from Kubernetes get the advice that fits."""

import json

import pytest

from lattice.cli.client.kind_names import Target, kind_names
from lattice.cli.client.manifests import locate_error
from lattice.errors import Cause, Conflict, NotFound
from lattice.kinds import KINDS
from lattice.kinds.kubernetes_names import COUNTERPARTS
from lattice.kinds.meta.yaml_manifest import load_documents
from lattice.kinds.service import LatticeService

SERVICES = "/apis/lattice.dev/v1alpha1/namespaces/{}/latticeservices/{}"
SECRETS = "/api/v1/namespaces/lattice-system/secrets"


def service(name: str, namespace: str = "", **spec: object) -> str:
    where = f", namespace: {namespace}" if namespace else ""
    whole = json.dumps({"containers": {"main": {"image": "web:1"}}, **spec})
    return (
        "---\napiVersion: lattice.dev/v1alpha1\nkind: LatticeService\n"
        f"metadata: {{name: {name}{where}}}\nspec: {whole}\n"
    )


@pytest.mark.parametrize("api_version", ["v1", "apps/v1", "lattice.dev/v1alpha1", "lattice.dev/v1"])
@pytest.mark.parametrize("kind", ["Service", "Deployment", "StatefulSet", "Pod"])
def test_kubernetes_manifest_is_pointed_to_lattice_service(write, lattice, server, kind, api_version):
    write("f.yaml", f"apiVersion: {api_version}\nkind: {kind}\nmetadata: {{name: a}}\n")
    for arguments in (("apply", "-f", "f.yaml"), ("plan", "-f", "f.yaml")):
        ran = lattice(*arguments)
        assert ran.code != 0
        assert f"f.yaml:2: there is no kind '{kind}' in {api_version}" in ran.err
        assert "declare a LatticeService (apiVersion: lattice.dev/v1alpha1)" in ran.err
    assert [method for method, _, _ in server.log if method != "GET"] == []


@pytest.mark.parametrize(
    ("word", "advice"),
    [
        ("pods", "`lattice get workloads`"),
        ("po", "`lattice get workloads`"),
        ("deployments", "`lattice get services`"),
        ("deploy/api", "`lattice get services`"),
        ("jobs", "`lattice get workloads`"),
        ("pvc", "storageGi"),
    ],
)
def test_get_of_a_kubernetes_kind_names_what_lattice_has(lattice, server, word, advice):
    ran = lattice("get", word)
    assert ran.code == 1
    assert "is a kind of Kubernetes" in ran.err
    assert advice in ran.err


def test_svc_and_nodes_are_kinds_of_lattice():
    assert kind_names().resolve("svc")[0] == LatticeService.resource
    assert kind_names().resolve("nodes")[0].kind == "LatticeNode"


def test_every_counterpart_names_a_served_kind():
    for counterpart in COUNTERPARTS:
        assert kind_names().resolve(counterpart.resource)[0].kind in {kind.resource.kind for kind in KINDS}


@pytest.mark.parametrize(
    "word", ["exec", "scale", "rollout", "restart", "ui", "port-forward", "edit", "wait"]
)
def test_command_of_kubectl_names_what_does_the_work(lattice, word):
    ran = lattice(word, "service/api")
    assert ran.code == 2
    assert f"there is no command '{word}'; " in ran.err
    assert "did you mean" not in ran.err
    assert "lattice" in ran.err.partition("; ")[2]


@pytest.mark.parametrize("command", ["apply", "plan", "delete", "whatif"])
def test_file_without_the_flag_is_named_with_it(write, lattice, server, command):
    write("pool.yaml", service("a"))
    ran = lattice(command, "pool.yaml")
    if command == "delete":
        return
    assert "-f pool.yaml" in ran.err


def test_conflict_advice_names_only_options_of_the_command(lattice):
    document = load_documents(service("a").encode(), "f.yaml")[0]
    target = Target(LatticeService.resource, "a")
    conflict = Conflict("x", causes=[Cause(".spec.replicas", 'conflict with "argocd"')])
    assert "with --force-conflicts" in locate_error(conflict, document, target).fix
    fix = locate_error(conflict, document, target, can_force=False).fix
    assert "`lattice apply --force-conflicts` first" in fix
    for command, has_option in (("apply", True), ("plan", True), ("whatif", False), ("fit", False)):
        assert ("--force-conflicts" in lattice(command, "--help").out) is has_option


def test_apply_names_the_namespaces_of_several(write, lattice, server):
    write("f.yaml", service("web", "shop") + service("web", "lab"))
    assert lattice("apply", "-f", "f.yaml").out.splitlines() == [
        "latticeservice.lattice.dev/web created in namespace shop",
        "latticeservice.lattice.dev/web created in namespace lab",
    ]
    write("g.yaml", service("web", "shop"))
    assert lattice("apply", "-f", "g.yaml").out == "latticeservice.lattice.dev/web unchanged\n"


@pytest.mark.parametrize("cores", ["500m", 0.5, 2, "2"])
def test_cores_are_a_number_or_a_quantity(write, lattice, no_server, cores):
    placement = {"resources": {"cores": cores}}
    write("f.yaml", service("web", placement=placement))
    assert lattice("apply", "-f", "f.yaml", "--dry-run=client").code == 0
    document = load_documents(service("web", placement=placement).encode(), "f.yaml")[0]
    assert document.value["spec"]["placement"]["resources"]["cores"] is not None


@pytest.mark.parametrize("cores", ["500x", -1, "-1", [], {"a": 1}, True, "1e999", 10_000_000_000])
def test_wrong_cores_are_refused_with_their_path(write, lattice, no_server, cores):
    write("f.yaml", service("web", placement={"resources": {"cores": cores}}))
    ran = lattice("apply", "-f", "f.yaml", "--dry-run=client")
    assert ran.code == 1
    assert "spec.placement.resources.cores" in ran.err


def test_misspelt_field_gets_a_suggestion(write, lattice, no_server):
    write("f.yaml", service("web", placement={"complience": ["gdpr"]}))
    ran = lattice("apply", "-f", "f.yaml", "--dry-run=client")
    assert 'unknown field "spec.placement.complience"; did you mean compliance?' in ran.err


def test_containers_as_a_list_are_shown_as_a_map(write, lattice, no_server):
    write("f.yaml", service("web", containers=[{"name": "main", "image": "web:1"}]))
    ran = lattice("apply", "-f", "f.yaml", "--dry-run=client")
    assert (
        'must be a map, written as `name: value` lines, not a list: such as {"main":{"image":"web:1"}}'
        in ran.err
    )


def token(name: str, uid: str) -> dict[str, object]:
    from lattice.kinds.join_token import Grant, JoinToken, token_secret

    grant = Grant(expires="2099-01-01T00:00:00Z", node=name, uid=uid)
    return token_secret(JoinToken(f"{len(name):012x}", "s" * 22, "a" * 64), grant)


def test_tokens_of_machines_that_lattice_makes_are_hidden(lattice, server):
    for name, uid in (("rack-1", ""), ("lab-001-nano-1", "uid-7")):
        secret = token(name, uid)
        server.put(f"{SECRETS}/{secret['metadata']['name']}", secret)
    ran = lattice("tokens", "list")
    assert [line.split()[1] for line in ran.out.splitlines()] == ["NODE", "rack-1"]
    assert "1 token of machines that Lattice makes not shown; --all lists them" in ran.err
    assert "lab-001-nano-1" in lattice("tokens", "list", "--all").out


def test_unknown_word_keeps_the_suggestion_by_spelling():
    with pytest.raises(NotFound) as raised:
        kind_names().resolve("poolz")
    assert raised.value.fix == "did you mean pools?"


def test_beginning_of_an_option_is_completed_in_the_error(lattice):
    ran = lattice("get", "services", "--al")
    assert "--all-namespaces" in ran.err
    assert "--help'?" not in ran.err
