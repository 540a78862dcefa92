"""The identity of a machine: the private key, which never leaves the machine, and the certificate of the
node. The files are readable by their owner only."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from lattice.agent.state_file import write_atomically
from lattice.errors import Invalid

RENEWAL_LIFETIME_DIVISOR = 3  # renew when a third of the lifetime remains


class JoinRecord(msgspec.Struct, frozen=True):
    """The node that the machine joined as, and the addresses of servers from the join."""

    node: str
    server: str = ""  # https://…; several addresses are separated by commas
    agents: tuple[str, ...] = ()  # host:port; the address of the last connection first


@dataclass
class Identity:
    """The key and certificate files of a folder; created by `load`, filled by `join`. No method uses the
    network."""

    folder: Path
    key: bytes = b""
    certificate: bytes = b""
    authority: bytes = b""
    join_record: JoinRecord = field(default_factory=lambda: JoinRecord(""))

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """Load the identity of a folder and create a missing key; without a join the certificate is empty."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        identity = cls(folder)
        identity.key = identity._read("agent.key")
        if not identity.key:
            private_key = ec.generate_private_key(ec.SECP256R1())
            identity.key = private_key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            write_atomically(folder / "agent.key", identity.key)
        identity.certificate, identity.authority = identity._read("agent.crt"), identity._read("ca.crt")
        if text := identity._read("place.json"):
            try:
                identity.join_record = msgspec.json.decode(text, type=JoinRecord)
            except msgspec.MsgspecError as error:
                raise Invalid(
                    f"cannot be read: {error}",
                    where=str(folder / "place.json"),
                    fix="remove the file and join again",
                ) from error
        return identity

    @property
    def has_joined(self) -> bool:
        """Whether the machine has a certificate, an authority and the name of its node."""
        return bool(self.certificate and self.authority and self.join_record.node)

    def save_credentials(self, certificate: bytes, authority: bytes, record: JoinRecord) -> None:
        """Save the credentials of a join; the join record is written last, since its file marks the
        credentials as complete."""
        write_atomically(self.folder / "ca.crt", authority)
        self.save_certificate(certificate)
        self.authority = authority
        self.save_join_record(record)

    def save_certificate(self, certificate: bytes) -> None:
        write_atomically(self.folder / "agent.crt", certificate)
        self.certificate = certificate

    def save_join_record(self, record: JoinRecord) -> None:
        if record != self.join_record:
            write_atomically(self.folder / "place.json", msgspec.json.encode(record))
            self.join_record = record

    def forget(self) -> None:
        """Delete the credentials and keep the key; the join record is deleted first, since its file marks the
        credentials as complete."""
        for name in ("place.json", "agent.crt", "ca.crt"):
            (self.folder / name).unlink(missing_ok=True)
        self.certificate = self.authority = b""
        self.join_record = JoinRecord("")

    def signing_request(self) -> bytes:
        """A certificate signing request without a subject name: the server assigns the name."""
        key = serialization.load_pem_private_key(self.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - created by `load`
        request = (
            x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM)

    @property
    def name(self) -> str:
        """The node name in the certificate."""
        subject = x509.load_pem_x509_certificate(self.certificate).subject
        return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value).partition(":")[2]

    @property
    def expires_at(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc

    def time_until_renewal(self, now: datetime) -> timedelta:
        """Time until a third of the certificate's lifetime remains; zero or negative means that renewal is
        due."""
        certificate = x509.load_pem_x509_certificate(self.certificate)
        lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        # A fraction of the lifetime fits certificates of any duration.
        return certificate.not_valid_after_utc - lifetime / RENEWAL_LIFETIME_DIVISOR - now

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return b""
