"""The commands against a real server, from the first apply to the last delete."""

import json

import pytest
from build.servers import running_server

POOL = """\
apiVersion: lattice.dev/v1alpha1
kind: LatticePool
metadata:
  name: {name}
  labels: {{env: "{env}"}}
spec:
  provider:
    type: aws
    region: us-east-1
  capacity:
    maxNodes: {nodes}
  budget:
    maxMonthlyCost: 10000.50
"""


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("road") / "data") as running:
        yield running


@pytest.fixture
def lattice(real, lattice, monkeypatch, tmp_path):
    monkeypatch.setenv("LATTICE_KUBECONFIG", str(real.kubeconfig))
    monkeypatch.chdir(tmp_path)
    return lattice


def write_pool(folder, name="us-east", nodes=100, env="prod"):
    (folder / f"{name}.yaml").write_text(POOL.format(name=name, nodes=nodes, env=env))
    return f"{name}.yaml"


def test_from_apply_to_delete(lattice, tmp_path):
    file = write_pool(tmp_path, "road")
    assert lattice("apply", "-f", file).out == "latticepool.lattice.dev/road created\n"
    assert lattice("apply", "-f", file).out == "latticepool.lattice.dev/road unchanged\n"
    write_pool(tmp_path, "road", nodes=101)
    assert (
        lattice("apply", "-f", file, "--dry-run").out
        == "latticepool.lattice.dev/road configured (server dry run)\n"
    )
    assert lattice("apply", "-f", file).out == "latticepool.lattice.dev/road configured\n"
    heads, row = lattice("get", "pool", "road").out.splitlines()
    assert heads.startswith("NAME   PROVIDER   REGION")
    assert row.startswith("road   aws        us-east-1")
    assert "Spec:\n  provider:\n    type:  aws\n" in lattice("describe", "pool/road").out
    assert (
        lattice("get", "pools", "-l", "env=prod", "-o", "jsonpath={.items[*].spec.budget.maxMonthlyCost}").out
        == "10000.50"
    )
    assert lattice("delete", "-f", file) == (0, 'latticepool.lattice.dev "road" deleted\n', "")
    assert lattice("get", "pool", "road").code == 1


def test_get_output_can_be_reapplied(lattice, tmp_path):
    lattice("apply", "-f", write_pool(tmp_path, "again"))
    shown = lattice("get", "pool", "again", "-o", "yaml").out
    (tmp_path / "shown.yaml").write_text(shown)
    assert lattice("apply", "-f", "shown.yaml").out == "latticepool.lattice.dev/again unchanged\n"
    assert json.loads(lattice("get", "pool", "again", "-o", "json").out)["spec"]["capacity"] == {
        "maxNodes": 100
    }


def test_rejections_name_the_line(lattice, tmp_path):
    ran = lattice("apply", "-f", write_pool(tmp_path, "bad", nodes=-5))
    assert ran.code == 1
    assert ran.err.startswith(
        "error: bad.yaml:1: latticepool.lattice.dev/bad is invalid\n  bad.yaml:11: spec.capacity.maxNodes: "
    )
    (tmp_path / "odd.yaml").write_text(POOL.format(name="odd", nodes=1, env="x") + "  odd: true\n")
    assert "\n  odd.yaml:14: spec.odd: " in lattice("apply", "-f", "odd.yaml").err


def test_apply_conflicts_on_fields_of_another_manager(lattice, tmp_path):
    lattice("apply", "-f", write_pool(tmp_path, "shared"), "--field-manager", "somebody")
    ran = lattice("apply", "-f", write_pool(tmp_path, "shared", nodes=7))
    assert ran.code == 1
    assert "somebody" in ran.err
    assert (
        lattice("apply", "-f", "shared.yaml", "--force-conflicts").out
        == "latticepool.lattice.dev/shared configured\n"
    )


def test_namespaces_are_applied_before_their_objects(lattice, tmp_path):
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: fresh}\ndata: {on: 'yes'}\n"
    (tmp_path / "both.yaml").write_text(
        config + "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: fresh}\n"
    )
    assert lattice("apply", "-f", "both.yaml").out == "namespace/fresh created\nconfigmap/a created\n"
    assert lattice("get", "cm", "-n", "fresh", "-o", "name").out == "configmap/a\n"
    assert lattice("get", "cm/a", "-n", "fresh", "-o", "jsonpath={.data.on}").out == "yes"


def test_long_lists_come_in_pages(lattice, tmp_path):
    maps = [
        f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: p{i}, labels: {{many: y}}}}\n" for i in range(12)
    ]
    (tmp_path / "many.yaml").write_text("---\n".join(maps))
    assert lattice("apply", "-f", "many.yaml").err == "12 created\n"
    assert len(lattice("get", "cm", "-l", "many=y", "--no-headers", "--chunk-size=5").out.splitlines()) == 12
    assert len(lattice("delete", "cm", "-l", "many=y").out.splitlines()) == 12


def test_everything_can_be_listed(lattice):
    assert lattice("get", "all", "-A").code == 0
    assert lattice("get", "lattice,ns,cm,secrets,events,leases,svc,crds", "-A").code == 0
