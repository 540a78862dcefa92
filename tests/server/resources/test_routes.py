"""Short paths are aliases of the full API paths."""

import pytest

from lattice.errors import MethodNotAllowed, NotFound
from lattice.server.resources.routes import RoutedRequest, expand_short_path, fill_body_kind
from lattice.server.resources.verbs import APPLY_PATCH_TYPE

LONG = "/apis/lattice.dev/v1alpha1"


@pytest.mark.parametrize(
    ("method", "path", "query", "meant"),
    [
        pytest.param("GET", "workloads", {}, ("GET", "/latticeworkloads"), id="a list is of all namespaces"),
        pytest.param(
            "GET",
            "workloads",
            {"namespace": "shop"},
            ("GET", "/namespaces/shop/latticeworkloads"),
            id="or of one",
        ),
        pytest.param(
            "POST", "workloads", {}, ("POST", "/namespaces/default/latticeworkloads"), id="create, in default"
        ),
        pytest.param(
            "GET", "workloads/job", {}, ("GET", "/namespaces/default/latticeworkloads/job"), id="one"
        ),
        pytest.param(
            "PUT", "workloads/job", {}, ("PATCH", "/namespaces/default/latticeworkloads/job"), id="declare it"
        ),
        pytest.param(
            "DELETE", "workloads/job", {}, ("DELETE", "/namespaces/default/latticeworkloads/job"), id="delete"
        ),
        pytest.param(
            "POST",
            "workloads/job/retry",
            {},
            ("POST", "/namespaces/default/latticeworkloads/job/retry"),
            id="retry",
        ),
        pytest.param(
            "GET", "workloads/job/log", {}, ("GET", "/namespaces/default/latticeworkloads/job/log"), id="log"
        ),
        pytest.param(
            "GET", "nodes", {"namespace": "shop"}, ("GET", "/latticenodes"), id="nodes have no namespace"
        ),
        pytest.param("GET", "nodes/n1", {}, ("GET", "/latticenodes/n1"), id="one node"),
    ],
)
def test_short_addresses(method: str, path: str, query: dict[str, str], meant: tuple[str, str]) -> None:
    found = expand_short_path(RoutedRequest(method, f"/lattice/v1/{path}", query))
    assert (found.method, found.path) == (meant[0], LONG + meant[1])
    assert "namespace" not in found.query


def test_a_put_takes_over_every_field() -> None:
    found = expand_short_path(RoutedRequest("PUT", "/lattice/v1/workloads/job", {"dryRun": "All"}))
    assert dict(found.query) == {"force": "true", "fieldManager": "lattice-v1", "dryRun": "All"}
    assert found.content_type == APPLY_PATCH_TYPE


@pytest.mark.parametrize(
    ("method", "path", "error"),
    [
        pytest.param("GET", "pools", NotFound, id="no such kind"),
        pytest.param("GET", "", NotFound, id="nothing"),
        pytest.param("GET", "workloads/job/status", NotFound, id="no such part"),
        pytest.param("GET", "workloads/job/log/more", NotFound, id="too long"),
        pytest.param("DELETE", "workloads", MethodNotAllowed, id="never all at once"),
        pytest.param("POST", "nodes", MethodNotAllowed, id="nodes register themselves"),
        pytest.param("GET", "workloads/job/retry", MethodNotAllowed, id="a retry is posted"),
    ],
)
def test_unknown_routes_are_not_found(method: str, path: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        expand_short_path(RoutedRequest(method, f"/lattice/v1/{path}", {}))


def test_other_addresses_are_left_alone() -> None:
    asked = RoutedRequest("GET", "/lattice/v10/workloads", {"namespace": "x"})
    assert expand_short_path(asked) is asked


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        pytest.param(
            b'{"metadata":{"name":"a"}}', b'"kind":"LatticeWorkload"', id="the address says the kind"
        ),
        pytest.param(b'{"kind":"Other","metadata":{}}', b'"kind":"Other"', id="what is said is kept"),
        pytest.param(
            b'{"metadata":{"managedFields":[1],"name":"a"}}',
            b'"metadata":{"name":"a"}',
            id="what was read may be sent back",
        ),
        pytest.param(
            b'{"a": 1, "a": 2}', b'{"a": 1, "a": 2}', id="twice the same key is for the reader to refuse"
        ),
        pytest.param(b"{", b"{", id="nonsense too"),
        pytest.param(b"[]", b"[]", id="and what is no object"),
    ],
)
def test_bodies(body: bytes, sent: bytes) -> None:
    asked = expand_short_path(RoutedRequest("POST", "/lattice/v1/workloads", {}))
    assert sent in fill_body_kind(asked, body)
    assert fill_body_kind(RoutedRequest("POST", "/apis/x", {}), body) == body
