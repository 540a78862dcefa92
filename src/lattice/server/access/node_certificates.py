"""Node certificates: the server sets their whole content and a lifetime of 24 hours, and reads the identity
of a node from its certificate."""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.errors import Denied, Invalid
from lattice.server.access.certificate_authority import CLOCK_SKEW, CertificateAuthority

NODES_GROUP = "lattice:nodes"
NODE_USER_PREFIX = "node:"
# The agent renews every 16 hours (decision 0020).
NODE_CERTIFICATE_LIFETIME = timedelta(hours=24)
MIN_RSA_BITS = 2048
MAX_CSR_BYTES = 8192

NodeKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node as named by its certificate. The server takes a node's name from the certificate only."""

    node: str
    # SHA-256 of the node's public key.
    key_digest: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """A certificate signing request with a valid signature and a strong key."""

    public_key: NodeKey
    csr: x509.CertificateSigningRequest

    @property
    def key_digest(self) -> str:
        return key_digest(self.public_key)


def parse_signing_request(pem: bytes) -> SigningRequest:
    """Parse a PEM signing request. A request with a weak key, a wrong signature or any extension is
    rejected."""
    if len(pem) > MAX_CSR_BYTES:
        raise Invalid(f"the signing request has {len(pem)} bytes; the maximum is {MAX_CSR_BYTES}")
    try:
        request = x509.load_pem_x509_csr(pem)
        public_key = request.public_key()
        is_signed = request.is_signature_valid
        extensions = list(request.extensions)
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise Invalid("the signing request cannot be read", fix="send a PKCS #10 request in PEM") from error
    if not is_signed:
        raise Denied("the signing request is not signed by its own key")
    if extensions:
        raise Denied(
            "the signing request contains extensions",
            fix="remove the extensions; the server sets the content of a node certificate",
        )
    return SigningRequest(_require_strong_key(public_key), request)


def _require_strong_key(public_key: object) -> NodeKey:
    if isinstance(public_key, ed25519.Ed25519PublicKey) or (
        isinstance(public_key, ec.EllipticCurvePublicKey) and public_key.curve.name == "secp256r1"
    ):
        return public_key
    if isinstance(public_key, rsa.RSAPublicKey) and public_key.key_size >= MIN_RSA_BITS:
        return public_key
    raise Denied(
        "the key type of the signing request is not supported",
        fix=f"use P-256, Ed25519, or RSA of {MIN_RSA_BITS} bits or more",
    )


def sign_node_certificate(
    authority: CertificateAuthority, request: SigningRequest, node: str, now: datetime
) -> bytes:
    """Sign the node's certificate and return the PEM. A request with a different subject is rejected, not
    corrected."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, f"{NODE_USER_PREFIX}{node}"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
        ]
    )
    if list(request.csr.subject) and request.csr.subject != subject:
        raise Denied(
            f"the signing request is for {request.csr.subject.rfc4514_string()}, but the node is {node}",
            fix="omit the subject",
        )
    # Digital signature only.
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(request.public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + NODE_CERTIFICATE_LIFETIME)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)


def node_identity(pem: bytes) -> NodeIdentity:
    """Return the node that a verified client certificate names. Raise Denied for every other certificate,
    also for an administrator's."""
    certificate = x509.load_pem_x509_certificate(pem)
    subject = certificate.subject
    names = [str(name.value) for name in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [group.value for group in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if (
        groups != [NODES_GROUP]
        or len(names) != 1
        or not names[0].startswith(NODE_USER_PREFIX)
        or not _is_client_certificate(certificate)
    ):
        raise Denied(
            "the certificate does not belong to a node", fix="join the machine: lattice agent --join TOKEN"
        )
    public_key = certificate.public_key()
    return NodeIdentity(
        names[0].removeprefix(NODE_USER_PREFIX),
        key_digest(public_key),  # type: ignore[arg-type]
        certificate.not_valid_after_utc,
    )


def expired_node_identity(authority: CertificateAuthority, pem: bytes) -> NodeIdentity:
    """The node of a certificate signed by this authority, valid or expired."""
    try:
        # Only the expiry is excused, never a wrong signature.
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise Denied(
            "the certificate is not signed by this certificate authority",
            fix="join the machine with a new token",
        ) from error
    return node_identity(pem)


def _is_client_certificate(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def key_digest(public_key: NodeKey) -> str:
    """Hexadecimal SHA-256 of the public key in DER."""
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public_key.public_bytes(serialization.Encoding.DER, form)).hexdigest()
