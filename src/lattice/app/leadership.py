"""What a server does while it leads: controllers with everything they need, agents that hear of it, garbage that goes."""

import asyncio
import random
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lattice import metrics
from lattice.clock import Clock, stamp
from lattice.controllers.controller_set import Acting, Means
from lattice.controllers.garbage.collector import Garbage
from lattice.controllers.runtime.context import Office, uids
from lattice.controllers.runtime.object_writes import created
from lattice.controllers.times import graces, node_times, pace
from lattice.controllers.automation.webhook_client import Webhooks, networks
from lattice.errors import Fenced, Invalid, LatticeError
from lattice.kinds import KINDS
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.meta.base import Metadata
from lattice.kinds.core import Lease, LeaseSpec, Secret
from lattice.kinds.join_token import Grant, JoinToken, fingerprint, token_secret
from lattice.kinds.meta.object_rules import born
from lattice.kinds.node import LatticeNode
from lattice.kinds.meta.stored import pack
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import environment
from lattice.presence import Presence
from lattice.providers.fake import FakeProvider
from lattice.providers.local import LocalProvider
from lattice.providers.protocol import Provider
from lattice.scheduling.table.node_table import NodeTable
from lattice.scheduling.cycle.profile import DEFAULT, PLAIN, PRESETS, ProfileSpec
from lattice.server.access.certificate_authority import Authority
from lattice.server.fleet_queries.price_files import TableFiles, paths
from lattice.settings import Settings
from lattice.store.cache import Cache
from lattice.store.election import Election
from lattice.store.protocol import ABSENT, Entry, Key, Put, Store, Term

LEASE = Key(Lease.resource.id, "lattice-system", "controllers")
AGENTS = "lattice.dev/agents"  # annotation of the lease: where the leader's agents connect
API = "lattice.dev/api"  # and where its API answers
RESTART_PAUSE = 5.0  # seconds before controllers that failed begin again
ENDED_PAUSE = 1.0  # seconds for whoever stopped the controllers to end the term, too
FIRST_TERM = 1.0  # seconds in which a server that can lead does
GOODBYE = 0.6  # seconds for controllers to finish what they have in hand
TOKEN_LIFE = timedelta(minutes=15)
ADAPTERS = ("local", "fake")

log = structlog.get_logger()


def providers(
    settings: Settings, folder: Path, clock: Clock, server: Callable[[], str]
) -> dict[str, Provider]:
    """`local,docker=local`: by the name that pools call them."""
    made: dict[str, Provider] = {}
    for word in (each.strip() for each in settings.providers.split(",")):
        name, _, adapter = word.partition("=")
        match adapter or name:
            case "":
                continue
            case "local":
                place = folder / "machines" / name
                made[name] = LocalProvider(place, server, clock, name, stop_within=settings.local_stop_within)
            case "fake":
                made[name] = FakeProvider(clock, name, note=folder / "machines" / f"{name}.json")
            case other:
                raise Invalid(
                    f"there is no adapter {other!r}",
                    where="--providers",
                    fix=f"use {' or '.join(ADAPTERS)}: NAME or NAME=ADAPTER",
                )
    return made


@dataclass(frozen=True)
class Minting:
    """One-time tokens for the machines that this server asks providers for."""

    authority: Authority
    clock: Clock

    def __call__(self, node: LatticeNode) -> tuple[str, Put]:
        token = JoinToken(secrets.token_hex(6), secrets.token_urlsafe(24), fingerprint(self.authority.pem))
        now = self.clock.now()
        grant = Grant(expires=stamp(now + TOKEN_LIFE), node=node.metadata.name, uid=node.metadata.uid)
        secret = born(token_secret(token, grant), uid=str(uuid.uuid4()), now=stamp(now))
        key = Key(Secret.resource.id, secret["metadata"]["namespace"], secret["metadata"]["name"])
        return str(token), Put(key, pack(Secret.resource, secret), ABSENT)


def means(settings: Settings, authority: Authority, clock: Clock, made: dict[str, Provider]) -> Means:
    files = TableFiles(paths(settings.prices), settings.latency)
    return Means(
        mint=Minting(authority, clock),
        tables=lambda: tuple(files.now()),  # type: ignore[arg-type,return-value]
        poster=Webhooks(networks(settings.webhook_allow), settings.webhook_ca),
        providers=made,
        times=node_times(settings),
        graces=graces(settings),
        pace=pace(settings),
        interval=settings.reconcile_interval,
        room_grace=settings.room_grace,
        controllers=settings.controllers,
        profile=_profile(settings.profile or DEFAULT),
        plain=None if settings.profile else PRESETS[PLAIN],
    )


def _lease(entry: Entry) -> Lease:
    return msgspec.json.decode(entry.value, type=Lease)


def _profile(name: str) -> ProfileSpec:
    """A preset, or a file; reading one takes more code than a server otherwise needs."""
    if name in PRESETS:
        return PRESETS[name]
    from lattice.cli.commands.simulate import profile_named

    return profile_named(name, None).profile


@dataclass
class Lead:
    """Follows the election: controllers run while this server leads, each write fenced by the term that it was elected for."""

    store: Store
    clock: Clock
    election: Election
    means: Means
    event_ttl: float
    address: Callable[[], str]  # at which this server's agents connect
    url: Callable[[], str]  # at which its API answers
    changed: Callable[[], None] = lambda: None  # told when a term begins or ends
    rng: random.Random = field(default_factory=random.Random)  # jitter
    new_uid: Callable[[], str] = field(default_factory=lambda: uids(random.Random()))  # noqa: S311 - names, no secrets
    freezes: bool = True  # copies stay for long, and are kept out of garbage collections
    failures: int = 0  # of controllers, since the start
    office: Office | None = None
    garbage: Garbage | None = None
    acting: Acting | None = None
    _table: NodeTable | None = None
    _has_led: bool = False
    _terms: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.leases: Cache[Lease] = Cache(
            self.store, Lease.resource.id, _lease, self.clock, self.rng, freeze=False
        )
        self.election.won, self.election.lost = self._won, self._lost
        self.means = replace(self.means, endpoint=self.url)

    def leading(self) -> Office | None:
        """None once our time is up by our own clock, whether or not anybody has told us."""
        return self.office if self.office is not None and self.election.term == self.office.term else None

    def leader(self) -> str | None:
        """Where the leader's agents connect, as the last leader wrote it down."""
        return self._announced(AGENTS)

    def leader_url(self) -> str | None:
        """Where the leader's API answers, by the same word."""
        return self._announced(API)

    def _announced(self, annotation: str) -> str | None:
        lease = self.leases.get(LEASE.path)
        return (lease.metadata.annotations.get(annotation) or None) if lease is not None else None

    def environment(self, workload: LatticeWorkload) -> dict[str, str]:
        """What a replica is told of those that it may call."""
        office = self.office
        if office is None or not workload.spec.service:
            return {}
        found = [
            each
            for each in office.copy(LatticeAgreement).all(workload.metadata.namespace)
            if each.spec.caller.name == workload.spec.service
        ]
        return environment(found)

    @property
    def pending(self) -> int:
        return sum(each.pending for each in (self.garbage, self.acting) if each is not None)

    @property
    def last_look(self) -> str | None:
        return max(
            (each.last_look for each in (self.garbage, self.acting) if each is not None and each.last_look),
            default=None,
        )

    def _won(self, term: Term) -> None:
        metrics.LEADER.set(1)
        log.info("leading", role=term.role, term=term.number)
        self._terms[term.number] = asyncio.create_task(self._lead(term))

    def _lost(self, term: Term) -> None:
        metrics.LEADER.set(0)
        metrics.forget_fleet()
        log.info("no longer leading", role=term.role, term=term.number)
        if self.acting is not None:
            self._table = self.acting.scheduling.table
        self.office = self.acting = self.garbage = None
        self.changed()
        if (task := self._terms.pop(term.number, None)) is not None:
            task.cancel()

    async def _lead(self, term: Term) -> None:
        await asyncio.gather(self._announce(term), self._act(term), self._collect(term))

    async def _announce(self, term: Term) -> None:
        """Others tell agents where we are."""
        while self.election.term == term:
            try:
                await self._write_lease(term)
                self._has_led = True
                return None
            except Fenced:
                return self.election.over(term)
            except LatticeError as error:
                log.warning("cannot say who leads", reason=str(error))
                await self.clock.sleep(1.0)
        return None

    async def begun(self) -> None:
        """Until we lead and have said so, or until it is clear that we do not for now."""
        ends = self.clock.monotonic() + FIRST_TERM
        while not self._has_led and self.clock.monotonic() < ends:
            await self.clock.sleep(0.01)

    async def _write_lease(self, term: Term) -> None:
        entry = await self.store.get(LEASE)
        resource = Lease.resource
        lease = Lease(
            api_version=resource.api_version,
            kind=resource.kind,
            metadata=Metadata(
                name=LEASE.name,
                namespace=LEASE.namespace,
                annotations={AGENTS: self.address(), API: self.url()},
            ),
            spec=LeaseSpec(
                holder_identity=term.holder,
                lease_transitions=term.number,
                acquire_time=f"{stamp(self.clock.now())[:-1]}.000000Z",
            ),
        )
        write = created(lease, uid=self.new_uid(), now=stamp(self.clock.now()))
        await self.store.commit(
            [msgspec.structs.replace(write, expect=ABSENT if entry is None else entry.revision)], fence=term
        )

    async def _act(self, term: Term) -> None:
        """Until the term is over. Controllers that fail as a whole are told of, and begin again."""
        while self.election.term == term:
            presence = Presence(self.clock)
            self.office = Office(self.store, self.clock, term, self.rng, presence, self.new_uid, self.freezes)
            self.acting = Acting(self.office, self.means, self._table)
            self.changed()
            await self._begun_again("controllers", term, self.acting.run)

    async def _collect(self, term: Term) -> None:
        while self.election.term == term and self.means.runs("garbage"):
            self.garbage = Garbage(
                self.store, self.clock, KINDS, term, timedelta(seconds=self.event_ttl), self.rng
            )
            await self._begun_again("garbage", term, self.garbage.run)

    async def _begun_again(self, name: str, term: Term, run: Callable[[], Any]) -> None:
        """`run` may say that a write was refused because the term is over."""
        try:
            is_over = await run()
        except Fenced:
            return self.election.over(term)
        except LatticeError as error:
            log.warning("controller stopped, starting again", controller=name, reason=str(error))
        except Exception:
            log.exception("controller failed, starting again", controller=name)
        else:
            return self.election.over(term) if is_over else await self.clock.sleep(ENDED_PAUSE)
        self.failures += 1
        return await self.clock.sleep(RESTART_PAUSE)

    async def stop(self) -> None:
        """What is in hand is finished before the role is given up."""
        if (
            acting := self.acting
        ) is not None:  # the term may end while we wait, and with it what we have of it
            acting.stop()
            ends = self.clock.monotonic() + GOODBYE
            while any(loop.in_hand for loop in acting.loops) and self.clock.monotonic() < ends:
                await self.clock.sleep(0.01)
        for task in self._terms.values():
            task.cancel()
        await asyncio.gather(*self._terms.values(), return_exceptions=True)
