"""Services -> who may call whom: an agreement appears with the first side that declares it, and goes with the last."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.loop import Again, Loop, Pace, Source
from lattice.controllers.runtime.context import Office
from lattice.controllers.runtime.object_writes import created, with_status
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import Name, Pair, agreed, agreement, endpoints, name_of, pair_of, pairs
from lattice.store.protocol import Change, Delete


@dataclass
class Agreements:
    """A key is a service, `namespace/name`: all agreements that it is a side of."""

    office: Office
    name: str = "agreements"

    def __post_init__(self) -> None:
        self._services, self._agreements = (
            self.office.copy(LatticeService),
            self.office.copy(LatticeAgreement),
        )
        self._workloads, self._nodes = self.office.copy(LatticeWorkload), self.office.copy(LatticeNode)
        self._teller = self.office.teller("agreements")

    def loop(self) -> Loop:
        sources = (
            Source(self._services),
            Source(self._workloads, self._of_workload),
            Source(self._agreements, self._of_agreement),
        )
        return Loop(self, self.office.clock, self.office.rng, self._everything, sources, Pace(workers=1))

    def _everything(self) -> Iterable[str]:
        named = {str(side) for each in self._agreements.all() for side in pair_of(each)}
        return sorted(named | {str(name_of(each)) for each in self._services.all() if each.spec.resources})

    def _of_workload(self, change: Change) -> Iterable[str]:
        """Only what answers changes addresses."""
        before, now = self._workloads.before, self._workloads.get(change.key.path) if change.value else None
        seen = {
            (each.spec.service, each.status.ready, each.status.binding)
            for each in (before, now)
            if each is not None and each.spec.service
        }
        return (
            [f"{change.key.namespace}/{service}" for service in sorted({each[0] for each in seen})]
            if len(seen) > 1 or None in (before, now)
            else ()
        )

    def _of_agreement(self, change: Change) -> Iterable[str]:
        found = self._agreements.get(change.key.path)
        return (str(pair_of(found).caller),) if found is not None else ()

    async def reconcile(self, key: str) -> Again | None:
        own = Name(*key.split("/", 1))
        services = {
            name_of(each): each for each in self._services.all() if not each.metadata.deletion_timestamp
        }
        wanted = {pair for each in services.values() for pair in pairs(each) if own in pair}
        known = {pair_of(each): each for each in self._agreements.all() if own in pair_of(each)}
        for pair in sorted(wanted | set(known)):
            await self._settle(pair, known.get(pair), services if pair in wanted else None)
        return None

    async def _settle(
        self, pair: Pair, known: LatticeAgreement | None, services: dict[Name, LatticeService] | None
    ) -> None:
        entry = self._agreements.entry(f"{pair.caller.namespace}/{pair.object_name}")
        if services is None:
            if entry is not None:
                await self.office.commit([Delete(entry.key, entry.revision)])
            return
        status = agreed(pair, services)
        if status.active:
            replicas = self._workloads.by("service", str(pair.callee))
            found = endpoints(replicas, lambda node: self._nodes.get(f"/{node}"))
            status = msgspec.structs.replace(status, endpoints=found)
        if known is None or entry is None:
            made = created(agreement(pair, status), uid=self.office.new_uid(), now=self.office.now)
            await self._agreements.wait_for(await self.office.commit([made]))
        elif (
            msgspec.structs.replace(
                known.status, active=status.active, missing=status.missing, endpoints=status.endpoints
            )
            != known.status
        ):
            await self.office.commit([with_status(entry, status)])
