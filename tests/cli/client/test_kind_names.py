"""Names, short names and categories resolve to kinds."""

import pytest

from lattice.cli.client.kind_names import KindNames, full_name, kind_names, resource_path
from lattice.errors import Malformed, NotFound
from lattice.kinds import KINDS
from lattice.kinds.meta.base import Resource


def ids(*words):
    return [(t.resource.id, t.name) for t in kind_names().parse_targets(words)]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        *[
            (w, "latticepools.lattice.dev")
            for w in ("pools", "pool", "lp", "latticepools", "LatticePool", "latticepools.lattice.dev")
        ],
        *[
            (w, "latticeservices.lattice.dev")
            for w in ("services", "service", "svc", "lsvc", "latticeservices.v1alpha1.lattice.dev")
        ],
        ("services.v1.", "services"),
        *[(w, "latticenodes.lattice.dev") for w in ("nodes", "node", "ln")],
        *[(w, "latticeworkloads.lattice.dev") for w in ("workloads", "lw")],
        *[(w, "latticeclusters.lattice.dev") for w in ("clusters", "lc")],
        *[(w, "latticeplacementpolicies.lattice.dev") for w in ("policies", "policy", "lpp")],
        *[(w, "latticenodeclasses.lattice.dev") for w in ("nodeclasses", "classes", "class", "lnc")],
        *[(w, "cloudinfrastructures.lattice.dev") for w in ("clouds", "cloud", "ci")],
        *[(w, "staticinfrastructures.lattice.dev") for w in ("datacenters", "statics", "si")],
        *[(w, "latticeagreements.lattice.dev") for w in ("agreements", "la")],
        *[(w, "automationrules.lattice.dev") for w in ("rules", "ar")],
        *[(w, "namespaces") for w in ("ns", "namespace")],
        *[(w, "configmaps") for w in ("cm", "ConfigMaps")],
        ("secrets", "secrets"),
        ("events", "events"),
        ("leases", "leases.coordination.k8s.io"),
        ("crds", "customresourcedefinitions.apiextensions.k8s.io"),
    ],
)
def test_words(word, meant):
    assert ids(word) == [(meant, "")]


def test_ways_to_name_objects():
    assert ids("pools", "a", "b") == [("latticepools.lattice.dev", "a"), ("latticepools.lattice.dev", "b")]
    assert ids("pool/a", "service/b") == [
        ("latticepools.lattice.dev", "a"),
        ("latticeservices.lattice.dev", "b"),
    ]
    assert ids("pools,nodes,lp") == [("latticepools.lattice.dev", ""), ("latticenodes.lattice.dev", "")]


def test_categories_expand_to_all_kinds():
    ours = {identity for identity, _ in ids("lattice")}
    assert {"latticepools.lattice.dev", "latticeservices.lattice.dev"} <= ours
    assert "secrets" not in ours
    assert ours <= {identity for identity, _ in ids("all")}


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        pytest.param("poolz", "did you mean pools?", id="a slip of the finger"),
        pytest.param("latticeservicees", "did you mean services?", id="a slip in a long name"),
        pytest.param(
            "zzzzzz",
            "`lattice get --help` lists the kinds; an application is a LatticeService",
            id="nothing near",
        ),
    ],
)
def test_unknown_kind_suggests_the_nearest(word, fix):
    with pytest.raises(NotFound) as raised:
        kind_names().resolve(word)
    assert raised.value.message == f"there is no kind {word!r}"
    assert fix in raised.value.fix


@pytest.mark.parametrize("words", [(), ("pool/",), ("/a",), ("pool/a/b",), ("all/x",), ("pool/a", "pools")])
def test_malformed_targets_are_refused(words):
    with pytest.raises(Malformed):
        kind_names().parse_targets(words)


def test_addresses():
    pool, service = (kind_names().resolve(w)[0] for w in ("pools", "services"))
    assert resource_path(pool, "ignored", "us-east") == "/apis/lattice.dev/v1alpha1/latticepools/us-east"
    assert (
        resource_path(service, "shop", "a/../b")
        == "/apis/lattice.dev/v1alpha1/namespaces/shop/latticeservices/a%2F..%2Fb"
    )
    assert resource_path(service) == "/apis/lattice.dev/v1alpha1/latticeservices"
    assert resource_path(kind_names().resolve("secrets")[0], "shop") == "/api/v1/namespaces/shop/secrets"
    assert [full_name(pool), full_name(kind_names().resolve("ns")[0])] == [
        "latticepool.lattice.dev",
        "namespace",
    ]


def test_kinds_of_manifests():
    assert kind_names().find_resource("lattice.dev/v1alpha1", "LatticePool").plural == "latticepools"
    with pytest.raises(NotFound, match="Service is a kind of Kubernetes") as raised:
        kind_names().find_resource("v1", "Service")
    assert "declare a LatticeService" in raised.value.fix
    with pytest.raises(NotFound, match="did you mean LatticePool"):
        kind_names().find_resource("lattice.dev/v1alpha1", "LatticePol")


@pytest.mark.parametrize("kind", ["Service", "Deployment"])
def test_kind_of_a_third_party_gets_no_kubernetes_advice(kind):
    """A group may have a kind with the name of a kind of Kubernetes, such as Service of Knative."""
    group = "serving.knative.dev/v1"
    with pytest.raises(NotFound, match=f"there is no kind '{kind}' in {group}") as raised:
        kind_names().find_resource(group, kind)
    assert "is a kind of Kubernetes" not in str(raised.value)
    assert "use apiVersion" not in raised.value.fix
    own = Resource(kind=kind, plural=f"{kind.lower()}s", group="serving.knative.dev", version="v1")
    served = [*(listed.resource for listed in KINDS), own]
    assert KindNames(served).find_resource(group, kind) == own
