"""Who this machine is: its key, which never leaves it, and the certificate that makes it a node. Files for the owner's eyes only."""

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

RENEWAL_LIFETIME_DIVISOR = 3  # renewed when a third of its life is left


class JoinRecord(msgspec.Struct, frozen=True):
    """Which node it is, and where it was told that servers are."""

    node: str
    server: str = ""  # https://…
    agents: tuple[str, ...] = ()  # host:port, the last good one first


@dataclass
class Identity:
    """`load` it or `join`; nothing here talks to anybody."""

    folder: Path
    key: bytes = b""
    certificate: bytes = b""
    authority: bytes = b""
    join_record: JoinRecord = field(default_factory=lambda: JoinRecord(""))

    @classmethod
    def load(cls, folder: Path) -> "Identity":
        """With an empty certificate if it has not joined."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = cls(folder)
        found.key = found._read("agent.key")
        if not found.key:
            found.key = _new_key()
            write_atomically(folder / "agent.key", found.key)
        found.certificate, found.authority = found._read("agent.crt"), found._read("ca.crt")
        if text := found._read("place.json"):
            try:
                found.join_record = msgspec.json.decode(text, type=JoinRecord)
            except msgspec.MsgspecError as error:
                raise Invalid(
                    f"cannot be read: {error}",
                    where=str(folder / "place.json"),
                    fix="remove it and join again",
                ) from error
        return found

    @property
    def has_joined(self) -> bool:
        return bool(self.certificate and self.authority and self.join_record.node)

    def save_credentials(self, certificate: bytes, authority: bytes, place: JoinRecord) -> None:
        """Remembered; the place last, for it says that the rest is there."""
        write_atomically(self.folder / "ca.crt", authority)
        self.save_certificate(certificate)
        self.authority = authority
        self.save_join_record(place)

    def save_certificate(self, certificate: bytes) -> None:
        write_atomically(self.folder / "agent.crt", certificate)
        self.certificate = certificate

    def save_join_record(self, place: JoinRecord) -> None:
        if place != self.join_record:
            write_atomically(self.folder / "place.json", msgspec.json.encode(place))
            self.join_record = place

    def forget(self) -> None:
        """It has not joined; the key stays. The place goes first, for it says that the rest is there."""
        for name in ("place.json", "agent.crt", "ca.crt"):
            (self.folder / name).unlink(missing_ok=True)
        self.certificate = self.authority = b""
        self.join_record = JoinRecord("")

    def signing_request(self) -> bytes:
        """Without a name: that is the server's to give."""
        key = serialization.load_pem_private_key(self.key, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - we made it
        request = (
            x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        )
        return request.public_bytes(serialization.Encoding.PEM)

    @property
    def name(self) -> str:
        """As the certificate says it."""
        subject = x509.load_pem_x509_certificate(self.certificate).subject
        return str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value).partition(":")[2]

    @property
    def expires_at(self) -> datetime:
        return x509.load_pem_x509_certificate(self.certificate).not_valid_after_utc

    def time_until_renewal(self, now: datetime) -> timedelta:
        """Until a third of its life is left; not positive: it is time."""
        certificate = x509.load_pem_x509_certificate(self.certificate)
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        return certificate.not_valid_after_utc - life / RENEWAL_LIFETIME_DIVISOR - now

    def _read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return b""


def _new_key() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
