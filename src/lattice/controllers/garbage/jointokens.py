"""Join tokens whose time is over are removed: they let nobody in, and only fill the store."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.kinds.core import Secret
from lattice.kinds.join_token import NAMESPACE, TYPE, expiry, kept_in
from lattice.store.protocol import Change, Delete

KEPT = timedelta(hours=1)  # after its end, so that whoever comes late hears why


@dataclass
class JoinTokens:
    office: Office
    name: str = "jointokens"

    async def reconcile(self, key: str) -> Again | None:
        secrets = self.office.copy(Secret)
        secret, entry = secrets.get(key), secrets.entry(key)
        if secret is None or entry is None:
            return None
        kept = kept_in(msgspec.to_builtins(secret))
        if kept is None:
            return None
        left = (expiry(kept.grant) + KEPT - self.office.clock.now()).total_seconds()
        if left > 0:
            return Again(after=left)
        await self.office.commit([Delete(entry.key, entry.revision)])
        return None

    def loop(self) -> Loop:
        office = self.office
        return Loop(
            self,
            office.clock,
            office.rng,
            self._all,
            (Source(office.copy(Secret), self._about),),
            Pace(workers=1),
        )

    def _all(self) -> Iterable[str]:
        return [
            f"{NAMESPACE}/{each.metadata.name}"
            for each in self.office.copy(Secret).all(NAMESPACE)
            if each.type == TYPE
        ]

    def _about(self, change: Change) -> Iterable[str]:
        secret = self.office.copy(Secret).get(change.key.path)
        return (
            (change.key.path,)
            if secret is not None and secret.type == TYPE and change.key.namespace == NAMESPACE
            else ()
        )
