"""Behaviour that only etcd has: restarts, dead members, foreign writers, quotas, expiring leases and TLS."""

import asyncio
import contextlib
import datetime
import ipaddress
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from build.etcd_server import EtcdServer, free_port, running_etcd, running_etcds
from build.store_keys import PODS, pod
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lattice.clock import SystemClock
from lattice.errors import Fenced, Full, Gone, Invalid, Unavailable
from lattice.store.election import Election
from lattice.store.etcd.client import Address, reject_lossy_version
from lattice.store.etcd.store import EtcdStore
from lattice.store.protocol import ABSENT, Put, Term, Watch


@asynccontextmanager
async def open_etcd_store(url: str) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(url, SystemClock())
    try:
        yield store
    finally:
        await store.close()


async def collect(watch: Watch, last: int) -> list[int]:
    """The revisions that a watch delivers, up to the last one."""
    seen: list[int] = []
    while not seen or seen[-1] < last:
        batches = await watch.next(15)
        assert batches, f"nothing came after {seen[-1:]}"
        seen += [batch.revision for batch in batches]
    return seen


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("etcd://one:2379", Address(("one:2379",))),
        ("etcd://one,two:99/", Address(("one:2379", "two:99"))),
        ("etcd://[::1]:2379,[::2]/a/b", Address(("[::1]:2379", "[::2]:2379"), "/a/b")),
        (
            "etcd://one/x?ca=/c.pem&cert=/t.pem&key=/k.pem",
            Address(("one:2379",), "/x", "/c.pem", "/t.pem", "/k.pem"),
        ),
    ],
)
def test_addresses(url: str, address: Address) -> None:
    assert Address.parse(url) == address


@pytest.mark.parametrize("url", ["http://one:2379", "etcd://", "etcd://one?user=me"])
def test_wrong_addresses_are_explained(url: str) -> None:
    with pytest.raises(Invalid, match="write the address as etcd://host:2379"):
        Address.parse(url)


@pytest.mark.parametrize(
    "version", ["3.4.22", "3.4.23", "3.4.30", "3.5.6", "3.5.21", "3.6.0", "3.6.0-rc.1", "4.0.0"]
)
def test_sound_etcd_releases_are_accepted(version: str) -> None:
    reject_lossy_version(version)


@pytest.mark.parametrize("version", ["3.5.0", "3.5.1", "3.5.5", "3.4.21", "3.4.0", "3.3.27"])
def test_etcd_releases_that_lose_writes_are_rejected(version: str) -> None:
    with pytest.raises(
        Unavailable,
        match=rf"etcd {version} .* can lose acknowledged writes\n.*--allow-etcd-that-loses-writes",
    ):
        reject_lossy_version(version)


async def test_unreachable_etcd_is_unavailable_within_seconds() -> None:
    started = time.monotonic()
    with pytest.raises(Unavailable, match="check that etcd runs"):
        async with open_etcd_store(f"etcd://127.0.0.1:{free_port()}") as store:
            await fill(store)
    assert time.monotonic() - started < 6


async def test_dead_member_is_skipped(etcd: EtcdServer) -> None:
    async with open_etcd_store(f"etcd://127.0.0.1:{free_port()},{etcd.endpoint}/dead-member") as store:
        first = await store.commit([Put(pod("x"), b"")])
        watch = await store.watch(PODS, first - 1)
        assert await collect(watch, first) == [first]


async def test_lost_quorum_rejects_requests_until_it_returns(
    tmp_path: Path,
) -> None:
    with running_etcds(tmp_path, 3) as (first, *others):
        endpoints = ",".join(member.endpoint for member in (first, *others))
        async with open_etcd_store(f"etcd://{endpoints}/majority") as store:
            await store.commit([Put(pod("before"), b"", ABSENT)])
            for member in others:
                member.stop()
            with pytest.raises(Unavailable):
                await store.commit([Put(pod("refused"), b"", ABSENT)], request_id="one")
            with pytest.raises(Unavailable):
                await store.get(pod("before"))
            for member in others:
                member.launch()
            await store.wait_for_quorum()
            revision = await store.commit([Put(pod("after"), b"", ABSENT)])
            assert (await store.get(pod("before"))) is not None
            assert (await store.list(PODS)).revision >= revision


async def test_watch_survives_etcd_restart_without_gap(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as server:
        async with open_etcd_store(server.url("restart")) as store:
            live = await store.watch(PODS, await store.revision())
            expected = [await store.commit([Put(pod("x"), b"")]) for _ in range(5)]
            assert await collect(live, expected[-1]) == expected
            await asyncio.to_thread(server.stop)
            with pytest.raises(Unavailable):
                await store.commit([Put(pod("x"), b"lost?")])
            await asyncio.to_thread(server.start)
            again: list[int] = []
            while len(again) < 5:
                with contextlib.suppress(Unavailable):
                    again.append(await store.commit([Put(pod("y"), b"")]))
                await asyncio.sleep(0.05)
            told = await collect(live, again[-1])
            assert [revision for revision in told if revision in again] == again
            assert told == sorted(set(told))


async def test_watch_is_gone_when_missed_changes_are_compacted(tmp_path: Path) -> None:
    with running_etcd(tmp_path) as server:
        async with open_etcd_store(server.url("missed")) as store:
            live = await store.watch(PODS, await store.revision())
            await collect(live, await store.commit([Put(pod("x"), b"")]))
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(0.1)
            port, server.port = server.port, free_port()  # it comes back where the watch does not see it yet
            hidden, server.endpoint = server.endpoint, f"127.0.0.1:{server.port}"
            await asyncio.to_thread(server.start)
            other = await EtcdStore.open(server.url("missed"), SystemClock())
            for _ in range(3):
                await other.commit([Put(pod("x"), b"")])
            await other.compact(await other.revision())
            await other.close()
            await asyncio.to_thread(server.stop)
            server.port, server.endpoint = port, hidden
            await asyncio.to_thread(server.start)
            with pytest.raises(Gone):
                await live.next(15)
            await store.wait_for_quorum()
            fresh = await store.watch(PODS, await store.revision())
            last = await store.commit([Put(pod("x"), b"")])
            assert await collect(fresh, last) == [last]


async def test_past_watch_catches_up_with_live_changes(etcd: EtcdServer) -> None:
    async with open_etcd_store(etcd.url("past")) as store:
        start = await store.revision()
        expected = [await store.commit([Put(pod("x"), b"%d" % number)]) for number in range(1200)]
        assert await collect(await store.watch(PODS, expected[-1] - 1), expected[-1]) == expected[-1:]
        past = await store.watch(PODS, start)
        assert await collect(past, expected[-1]) == expected
        live = await store.commit([Put(pod("x"), b"live")])
        assert await collect(past, live) == [live]
        idle = await store.watch("idle", start)
        for _ in range(20):
            assert list(await idle.next(0.2)) == []
            if idle.progress >= live:
                break
        assert idle.progress >= live


async def test_progress_follows_foreign_writes(etcd: EtcdServer) -> None:
    async with open_etcd_store(etcd.url("shared")) as store:
        watch = await store.watch(PODS, await store.revision())
        stranger = await EtcdStore.open(etcd.url("stranger"), SystemClock())
        foreign = [await stranger.commit([Put(pod("x"), b"")]) for _ in range(3)]
        await stranger.close()
        page = await store.list(PODS)
        assert page.revision >= foreign[-1]
        deadline = time.monotonic() + 5
        while watch.progress < page.revision and time.monotonic() < deadline:
            assert list(await watch.next(0.1)) == []
        assert watch.progress >= page.revision


async def test_paused_leader_is_fenced_after_its_lease(etcd: EtcdServer) -> None:
    async with open_etcd_store(etcd.url("paused")) as store:
        old = await store.campaign("lead", "paused", 2)
        assert old is not None
        await store.commit([Put(pod("x"), b"mine")], fence=old)
        new: Term | None = None
        started = time.monotonic()
        while new is None and time.monotonic() < started + 10:
            new = await store.campaign("lead", "successor", 2)
            await asyncio.sleep(0.1)
        assert new is not None
        assert time.monotonic() - started >= 1.5
        assert not await store.renew(old)
        before = await store.revision()
        for number in range(20):
            with pytest.raises(Fenced):
                await store.commit([Put(pod(f"x{number}"), b"late")], fence=old, request_id=f"late-{number}")
        assert await store.revision() == before
        assert await store.commit([Put(pod("x"), b"new")], fence=new) > before


async def test_stopped_leader_hands_over_within_a_second(etcd: EtcdServer) -> None:
    async with open_etcd_store(etcd.url("handover")) as store:
        clock, winners = SystemClock(), asyncio.Queue[Term]()
        elections = [
            Election(store, clock, "lead", name, random.Random(name), on_started_leading=winners.put_nowait)
            for name in ("a", "b")
        ]
        tasks = {election.holder: asyncio.ensure_future(election.run()) for election in elections}
        first = await asyncio.wait_for(winners.get(), 5)
        await asyncio.sleep(0.3)
        started = time.monotonic()
        tasks[first.holder].cancel()
        second = await asyncio.wait_for(winners.get(), 5)
        assert time.monotonic() - started < 1.0
        assert (second.number, second.holder != first.holder) == (2, True)
        for task in tasks.values():
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)


async def fill(store: EtcdStore) -> None:
    for number in range(200):
        await store.commit([Put(pod(f"n{number}"), b"x" * 500_000)])


async def test_full_etcd_rejects_writes_but_serves_reads(tmp_path: Path) -> None:
    with running_etcd(tmp_path, "--quota-backend-bytes", "16777216") as server:
        async with open_etcd_store(server.url("full")) as store:
            kept = await store.commit([Put(pod("kept"), b"value")])
            with pytest.raises(Full, match="space quota is used up"):
                await fill(store)
            entry = await store.get(pod("kept"))
            assert entry is not None
            assert entry.revision == kept
            assert (await store.list(PODS, limit=1)).entries


async def test_request_ids_survive_loss_of_their_lease(etcd: EtcdServer) -> None:
    async with open_etcd_store(etcd.url("requests")) as store:
        first = await store.commit([Put(pod("x"), b"")], request_id="one")
        await store._client.revoke(store._request_lease)
        second = await store.commit([Put(pod("x"), b"")], request_id="two")
        assert second > first
        assert await store.commit([Put(pod("x"), b"")], request_id="two") == second


async def test_tls_with_a_client_certificate(tmp_path: Path) -> None:
    files = issue(tmp_path)
    options = [
        "--cert-file",
        files["cert"],
        "--key-file",
        files["key"],
        "--trusted-ca-file",
        files["ca"],
        "--client-cert-auth",
    ]
    server = EtcdServer(tmp_path, *options, scheme="https")
    server.start()
    try:
        without_certificate = f"{server.url('tls')}?ca={files['ca']}"
        with_certificate = f"{without_certificate}&cert={files['cert']}&key={files['key']}"
        async with open_etcd_store(with_certificate) as store:
            await store.commit([Put(pod("x"), b"")])
            assert await store.get(pod("x")) is not None
        with pytest.raises(Unavailable):
            async with open_etcd_store(without_certificate) as store:
                await store.commit([Put(pod("x"), b"")])
    finally:
        server.stop()


def issue(folder: Path) -> dict[str, str]:
    """A certificate authority, and one certificate for server and client."""
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name, name = _name("ca"), _name("etcd")
    ca = (
        _certificate(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(ca_key, hashes.SHA256())
    )
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    where = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    leaf = (
        _certificate(name, ca_name, key)
        .add_extension(usage, False)
        .add_extension(where, False)
        .sign(ca_key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    texts = {
        "ca": ca.public_bytes(serialization.Encoding.PEM),
        "cert": leaf.public_bytes(serialization.Encoding.PEM),
        "key": key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
    }
    for file, text in texts.items():
        (folder / f"{file}.pem").write_bytes(text)
    return {file: str(folder / f"{file}.pem") for file in texts}


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
    )
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(
        now + datetime.timedelta(hours=1)
    )
    return builder.public_key(key.public_key())
