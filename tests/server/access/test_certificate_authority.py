"""The built-in certificate authority: the certificates it signs, and when it reissues the server's
certificate."""

import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.server.access.certificate_authority import (
    ensure_server_certificate,
    load_authority,
    new_authority,
    write_private,
)


def test_client_certificate_carries_user_and_groups() -> None:
    authority, _ = new_authority()
    made = x509.load_pem_x509_certificate(
        authority.issue_client("ann", ["lattice:viewers", "team"]).certificate
    )
    assert [attribute.value for attribute in made.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "ann"
    ]
    assert [
        attribute.value for attribute in made.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    ] == [
        "lattice:viewers",
        "team",
    ]
    assert list(made.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [
        ExtendedKeyUsageOID.CLIENT_AUTH
    ]
    assert made.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    made.verify_directly_issued_by(authority.certificate)


def test_authority_loads_from_its_key_pair() -> None:
    authority, pair = new_authority()
    assert load_authority(pair).certificate == authority.certificate


def test_valid_server_certificate_is_reused(tmp_path: Path) -> None:
    authority, _ = new_authority()
    certificate, _ = ensure_server_certificate(authority, tmp_path, ["localhost", "127.0.0.1"])
    first = certificate.read_bytes()
    ensure_server_certificate(authority, tmp_path, ["localhost"])
    assert certificate.read_bytes() == first
    ensure_server_certificate(authority, tmp_path, ["localhost", "lattice.example"])
    assert certificate.read_bytes() != first


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: None, id="another authority of the same name signed it"),
        pytest.param(lambda path: path.write_bytes(b"junk"), id="unreadable file"),
        pytest.param(lambda path: path.unlink(), id="missing file"),
    ],
)
def test_unusable_server_certificate_is_reissued(tmp_path: Path, damage) -> None:
    old, _ = new_authority()
    certificate, _ = ensure_server_certificate(old, tmp_path, ["localhost"])
    damage(certificate)
    new, _ = new_authority()
    ensure_server_certificate(new, tmp_path, ["localhost"])
    x509.load_pem_x509_certificate(certificate.read_bytes()).verify_directly_issued_by(new.certificate)


def test_private_files_are_readable_by_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "key"
    write_private(path, b"secret")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
