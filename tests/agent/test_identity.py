"""A node's key and certificate: private files, renewal in time, and use on a new connection."""

import asyncio
import random
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from build.agent_world import AUTHORITY, an_agent_node
from build.virtual import VirtualClock

from lattice.agent.certificate_renewal import CertificateRenewal
from lattice.agent.identity import Identity, JoinRecord
from lattice.errors import Denied, Invalid
from lattice.server.access.node_certificates import parse_signing_request, sign_node_certificate


def joined(folder: Path, now: datetime) -> Identity:
    identity = Identity.load(folder)
    identity.save_credentials(
        _signed(identity.signing_request(), now),
        AUTHORITY.pem,
        JoinRecord("n1", "https://s:7443", ("s:7444",)),
    )
    return identity


def _signed(request: bytes, now: datetime) -> bytes:
    return sign_node_certificate(AUTHORITY, parse_signing_request(request), "n1", now)


def test_identity_survives_restart_with_private_files(tmp_path: Path) -> None:
    first = joined(tmp_path / "a", datetime.now(UTC))
    again = Identity.load(tmp_path / "a")
    assert again.has_joined
    assert (again.key, again.certificate, again.join_record) == (
        first.key,
        first.certificate,
        first.join_record,
    )
    assert again.name == "n1"
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_key_is_kept_before_join(tmp_path: Path) -> None:
    assert Identity.load(tmp_path).key == Identity.load(tmp_path).key
    assert not Identity.load(tmp_path).has_joined


def test_damaged_identity_file_says_join_again(tmp_path: Path) -> None:
    joined(tmp_path, datetime.now(UTC))
    (tmp_path / "place.json").write_text("{")
    with pytest.raises(Invalid, match="join again"):
        Identity.load(tmp_path)


async def test_certificate_renews_at_two_thirds_of_lifetime(tmp_path: Path) -> None:
    clock = VirtualClock()
    identity = joined(tmp_path, clock.now())
    agent = an_agent_node(clock, {}, addresses=["s"]).agent
    asked: list[float] = []

    async def renew(address: str, request: bytes) -> bytes:
        asked.append(clock.monotonic())
        if len(asked) == 1:
            raise Denied("not just now")
        return _signed(request, clock.now())

    agent.transport.renew_certificate = renew  # type: ignore[method-assign]
    task = asyncio.create_task(CertificateRenewal(identity, agent, clock, random.Random(1)).run())
    await clock.advance(24 * 3600)
    first, second, *later = asked
    assert 15.9 * 3600 <= first <= 16.1 * 3600
    assert 30 <= second - first <= 90, "asked again a minute later"
    assert later == []
    assert agent.certificate_renewed.is_set()
    assert identity.expires_at > clock.now() + timedelta(hours=10)
    assert Identity.load(tmp_path).certificate == identity.certificate
    task.cancel()


async def test_expired_certificate_is_renewed_by_key(
    tmp_path: Path,
) -> None:
    clock = VirtualClock()
    identity = joined(tmp_path, clock.now() - timedelta(hours=72))
    agent = an_agent_node(clock, {}, addresses=["s"]).agent

    async def come_back() -> bytes:
        return _signed(identity.signing_request(), clock.now())

    task = asyncio.create_task(CertificateRenewal(identity, agent, clock, random.Random(1), come_back).run())
    await clock.advance(1)
    assert identity.expires_at > clock.now()
    assert agent.certificate_renewed.is_set()
    task.cancel()
