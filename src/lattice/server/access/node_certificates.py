"""Certificates of nodes: exactly one profile, signed for 24 hours, whatever the request asks for; and who a certificate says is calling."""

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
NODE_CERTIFICATE_LIFETIME = timedelta(hours=24)
MIN_RSA_BITS = 2048
MAX_CSR_BYTES = 8192  # bytes

NodeKey = ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """A node as its certificate names it: the only place where its name comes from."""

    node: str
    key_digest: str  # SHA-256 of its public key
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class SigningRequest:
    """A signing request whose sender holds the key."""

    public_key: NodeKey
    csr: x509.CertificateSigningRequest

    @property
    def key_digest(self) -> str:
        return key_digest(self.public_key)


def parse_signing_request(pem: bytes) -> SigningRequest:
    """Refused if the key is weak, the signature wrong, or it asks for anything that only the signer may say."""
    if len(pem) > MAX_CSR_BYTES:
        raise Invalid(f"the signing request has {len(pem)} bytes, at most {MAX_CSR_BYTES} are taken")
    try:
        request = x509.load_pem_x509_csr(pem)
        public, is_signed, extensions = (
            request.public_key(),
            request.is_signature_valid,
            list(request.extensions),
        )
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as error:
        raise Invalid("the signing request cannot be read", fix="send a PKCS #10 request in PEM") from error
    if not is_signed:
        raise Denied("the signing request is not signed by its own key")
    if extensions:
        raise Denied(
            "the signing request asks for extensions",
            fix="leave them out: the server decides what a node's certificate says",
        )
    return SigningRequest(_require_strong_key(public), request)


def _require_strong_key(public: object) -> NodeKey:
    if isinstance(public, ed25519.Ed25519PublicKey) or (
        isinstance(public, ec.EllipticCurvePublicKey) and public.curve.name == "secp256r1"
    ):
        return public
    if isinstance(public, rsa.RSAPublicKey) and public.key_size >= MIN_RSA_BITS:
        return public
    raise Denied(
        "the key of the signing request is of no kind that is taken",
        fix=f"use P-256, Ed25519, or RSA of {MIN_RSA_BITS} bits or more",
    )


def sign_node_certificate(
    authority: CertificateAuthority, asked: SigningRequest, node: str, now: datetime
) -> bytes:
    """The node's certificate in PEM. A request that names somebody else is refused, not corrected."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, f"{NODE_USER_PREFIX}{node}"),
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
        ]
    )
    if list(asked.csr.subject) and asked.csr.subject != subject:
        raise Denied(
            f"the signing request is for {asked.csr.subject.rfc4514_string()}, and this is node {node}",
            fix="leave the subject out",
        )
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(asked.public_key)
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
    """The node that a verified client certificate names. Whoever is no node, an administrator too, is refused."""
    certificate = x509.load_pem_x509_certificate(pem)
    names = [str(each.value) for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    groups = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if (
        groups != [NODES_GROUP]
        or len(names) != 1
        or not names[0].startswith(NODE_USER_PREFIX)
        or not _is_client(certificate)
    ):
        raise Denied(
            "the certificate is not a node's", fix="let the machine join: lattice agent --join TOKEN"
        )
    public = certificate.public_key()
    return NodeIdentity(
        names[0].removeprefix(NODE_USER_PREFIX),
        key_digest(public),  # type: ignore[arg-type]
        certificate.not_valid_after_utc,
    )


def expired_node_identity(authority: CertificateAuthority, pem: bytes) -> NodeIdentity:
    """The node that a certificate of ours names, though it may have ended."""
    try:
        x509.load_pem_x509_certificate(pem).verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise Denied(
            "the certificate was not signed here", fix="let the machine join with a new token"
        ) from error
    return node_identity(pem)


def _is_client(certificate: x509.Certificate) -> bool:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return False
    return list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def key_digest(public: NodeKey) -> str:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(public.public_bytes(serialization.Encoding.DER, form)).hexdigest()
