"""The built-in certificate authority issues the server's TLS certificate and client certificates for users
and nodes."""

import ipaddress
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
# The server renews its certificate once less than this time remains.
RENEW_BEFORE_EXPIRY = timedelta(days=30)
# A certificate becomes valid this long before its issue, because clocks of machines differ.
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class CertificateKeyPair:
    """A certificate and the matching private key, both in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class CertificateAuthority:
    """The certificate and key of the authority, with methods that issue server and client certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def issue_client(
        self, user: str, groups: Sequence[str], lifetime: timedelta = LEAF_LIFETIME
    ) -> CertificateKeyPair:
        """Issue a client certificate: the common name is the user, every organization is a group."""
        names = [
            x509.NameAttribute(NameOID.COMMON_NAME, user),
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
        ]
        return self._issue(x509.Name(names), ExtendedKeyUsageOID.CLIENT_AUTH, [], lifetime)

    def issue_server(self, hosts: Sequence[str]) -> CertificateKeyPair:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lattice-server")])
        return self._issue(
            name,
            ExtendedKeyUsageOID.SERVER_AUTH,
            [_subject_alternative_name(host) for host in hosts],
            LEAF_LIFETIME,
        )

    def _issue(
        self,
        name: x509.Name,
        usage: x509.ObjectIdentifier,
        hosts: Sequence[x509.GeneralName],
        lifetime: timedelta,
    ) -> CertificateKeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _certificate_builder(name, self.certificate.subject, key.public_key(), lifetime)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False
            )
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        return CertificateKeyPair(
            builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), _key_pem(key)
        )


def new_authority() -> tuple[CertificateAuthority, CertificateKeyPair]:
    """Create a certificate authority with a new key; return the authority and the PEM pair to store."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lattice-ca")])
    certificate = (
        _certificate_builder(name, name, key.public_key(), CA_LIFETIME)
        # Path length 0: a certificate of this authority can not be an authority itself.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return CertificateAuthority(certificate, key), CertificateKeyPair(
        certificate.public_bytes(serialization.Encoding.PEM), _key_pem(key)
    )


def load_authority(pair: CertificateKeyPair) -> CertificateAuthority:
    """The certificate authority of a stored PEM pair. `TypeError` for a key other than an elliptic-curve
    key."""
    key = serialization.load_pem_private_key(pair.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("the key of the certificate authority must be an elliptic curve key")
    return CertificateAuthority(x509.load_pem_x509_certificate(pair.certificate), key)


def ensure_server_certificate(
    authority: CertificateAuthority, folder: Path, hosts: Sequence[str]
) -> tuple[Path, Path]:
    """Return the files of the server's certificate and key in `folder`.

    The server issues a new certificate if the stored certificate does not name every host, was signed by a
    different authority, or ends within `RENEW_BEFORE_EXPIRY`.
    """
    certificate, key = folder / "server.crt", folder / "server.key"
    if not (
        certificate.exists() and key.exists() and _is_valid_for(certificate.read_bytes(), authority, hosts)
    ):
        pair = authority.issue_server(hosts)
        # The key is written first: after a crash in between, the old certificate still fails the check.
        write_private(key, pair.key)
        write_private(certificate, pair.certificate)
    return certificate, key


def _is_valid_for(pem: bytes, authority: CertificateAuthority, hosts: Sequence[str]) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError:
        return False
    if (
        certificate.issuer != authority.certificate.subject
        or certificate.not_valid_after_utc - datetime.now(UTC) < RENEW_BEFORE_EXPIRY
    ):
        return False
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, InvalidSignature):
        # Every authority has the same name: only the signature tells that another authority signed.
        return False
    named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {_subject_alternative_name(host) for host in hosts} <= set(named)


def own_hosts(listen: str) -> list[str]:
    """Host names and addresses of this machine for the server's certificate, with the listen address if the
    server listens on one address only."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    if listen not in {"", "0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        names.append(listen)
    return list(dict.fromkeys(names))


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically, readable by the owner only (mode 0600).

    The content is flushed to disk before the rename, so a crash leaves the old file or the complete new file.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + lifetime)
    )


def _key_usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=sign,
        crl_sign=sign,
        encipher_only=False,
        decipher_only=False,
    )


def _subject_alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
