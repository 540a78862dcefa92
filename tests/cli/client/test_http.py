"""The HTTP client: mutual TLS, broken connections, and answers that no Lattice server gives."""

import ssl
import tempfile
from dataclasses import replace

import pytest

from lattice.cli.client.config import Server
from lattice.cli.client.http import Client, Request
from lattice.errors import LatticeError, Unavailable
from lattice.server.access.certificate_authority import new_authority


@pytest.fixture(scope="module")
def authority():
    return new_authority()[0]


@pytest.fixture
def secure(server, authority, tmp_path):
    """The tiny server behind TLS, for clients with a certificate only; its certificate names `lattice.test`."""
    pair = authority.issue_server(["lattice.test"])
    (tmp_path / "server.pem").write_bytes(pair.certificate + pair.key)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    context.load_verify_locations(tmp_path / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server.socket = context.wrap_socket(server.socket, server_side=True)
    client = authority.issue_client("me", ["lattice:admins"])
    return Server(
        server.url.replace("http:", "https:"),
        authority=authority.pem.decode(),
        certificate=client.certificate.decode(),
        key=client.key.decode(),
        tls_server_name="lattice.test",
    )


def test_mutual_tls_leaves_no_key_on_disk(secure, tmp_path, monkeypatch):
    temporary_folder = tmp_path / "temporary"
    temporary_folder.mkdir()
    written_files = []

    def record_file(*arguments, **options):
        handle, path = mkstemp(*arguments, **options)
        written_files.append(path)
        return handle, path

    mkstemp = tempfile.mkstemp
    # A folder of its own: other tests that run at the same time also write below the shared one.
    monkeypatch.setattr(tempfile, "tempdir", str(temporary_folder))
    monkeypatch.setattr(tempfile, "mkstemp", record_file)
    client = Client(secure, timeout=5)
    assert client.get("/version")["gitVersion"] == "v1.33.0+lattice"
    client.close()
    assert written_files
    assert not list(temporary_folder.iterdir())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(
            {"tls_server_name": ""},
            "presents a certificate that is not trusted",
            id="a name that the certificate does not have",
        ),
        pytest.param(
            {"authority": new_authority()[0].pem.decode()},
            "presents a certificate that is not trusted",
            id="another authority",
        ),
        pytest.param({"certificate": "", "key": ""}, "", id="no certificate of our own"),
    ],
)
def test_untrusted_certificates_fail_both_ways(secure, change, problem):
    with pytest.raises(Unavailable) as raised:
        Client(replace(secure, **change), timeout=5).get("/version")
    assert problem in raised.value.message
    assert raised.value.fix


def test_connection_is_reused_and_renewed_when_broken(server):
    client = Client(Server(server.url), timeout=5)
    client.get("/version")
    first = client._connection
    client.get("/version")
    assert client._connection is first
    first.sock.shutdown(2)
    assert client.get("/version")
    assert client._connection is not first
    client.close()


def test_delete_is_not_retried_automatically(server):
    client = Client(Server(server.url), timeout=5)
    client.get("/version")
    client._connection.sock.shutdown(2)
    with pytest.raises(Unavailable, match=r"the connection to .* failed"):
        client.send(Request("DELETE", "/apis/x/v1/things/a"))


def test_non_lattice_answer_is_unavailable(server):
    server.answers["GET", "/version"] = [(502, [], "<html>")]
    with pytest.raises(Unavailable, match="the server answered 502 to /version"):
        Client(Server(server.url), timeout=5).get("/version")


def test_silent_server_ends_with_the_timeout(server):
    server.shutdown()  # still accepts, never answers
    with pytest.raises(LatticeError, match="did not answer in time"):
        Client(Server(server.url), timeout=0.05).get("/version")


def test_expired_continue_token_restarts_the_list(server):
    path = "/apis/x/v1/things"
    for i in range(5):
        server.put(f"{path}/{i}", {"metadata": {"name": str(i)}})
    first = {"metadata": {"continue": "2", "resourceVersion": "1"}, "items": [{}, {}]}
    server.answers["GET", path] = [(200, [], first), (410, [], {"reason": "Expired", "message": "too old"})]
    pages = Client(Server(server.url), timeout=5).list_pages(path, {"limit": "2"})
    assert [len(page["items"]) for page in pages] == [5]
