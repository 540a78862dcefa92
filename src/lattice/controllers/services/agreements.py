"""Services -> who may call whom: an agreement appears with the first side that declares it, and goes with the last."""

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.runtime.object_writes import put_new, with_status
from lattice.kinds.agreement import LatticeAgreement
from lattice.kinds.node import LatticeNode
from lattice.kinds.service import LatticeService
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.agreements import (
    Name,
    Pair,
    agreement_status,
    build_agreement,
    declared_pairs,
    endpoints,
    name_of,
    pair_of,
)
from lattice.store.protocol import Change, Delete


@dataclass
class AgreementController:
    """A key is a service, `namespace/name`: all agreements that it is a side of."""

    context: ControllerContext
    name: str = "agreements"

    def __post_init__(self) -> None:
        self._services, self._agreements = (
            self.context.cache(LatticeService),
            self.context.cache(LatticeAgreement),
        )
        self._workloads, self._nodes = self.context.cache(LatticeWorkload), self.context.cache(LatticeNode)
        self._recorder = self.context.recorder("agreements")

    def loop(self) -> Loop:
        sources = (
            Source(self._services),
            Source(self._workloads, self._keys_for_workload),
            Source(self._agreements, self._keys_for_agreement),
        )
        return Loop(
            self, self.context.clock, self.context.rng, self._list_keys, sources, Concurrency(workers=1)
        )

    def _list_keys(self) -> Iterable[str]:
        named = {str(side) for each in self._agreements.objects() for side in pair_of(each)}
        return sorted(
            named | {str(name_of(each)) for each in self._services.objects() if each.spec.resources}
        )

    def _keys_for_workload(self, change: Change) -> Iterable[str]:
        """Only what answers changes addresses."""
        before, now = (
            self._workloads.previous_object,
            self._workloads.get(change.key.path) if change.value else None,
        )
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

    def _keys_for_agreement(self, change: Change) -> Iterable[str]:
        found = self._agreements.get(change.key.path)
        return (str(pair_of(found).caller),) if found is not None else ()

    async def reconcile(self, key: str) -> Requeue | None:
        own = Name(*key.split("/", 1))
        services = {
            name_of(each): each for each in self._services.objects() if not each.metadata.deletion_timestamp
        }
        wanted = {pair for each in services.values() for pair in declared_pairs(each) if own in pair}
        known = {pair_of(each): each for each in self._agreements.objects() if own in pair_of(each)}
        for pair in sorted(wanted | set(known)):
            await self._reconcile_pair(pair, known.get(pair), services if pair in wanted else None)
        return None

    async def _reconcile_pair(
        self, pair: Pair, known: LatticeAgreement | None, services: dict[Name, LatticeService] | None
    ) -> None:
        entry = self._agreements.entry(f"{pair.caller.namespace}/{pair.object_name}")
        if services is None:
            if entry is not None:
                await self.context.commit([Delete(entry.key, entry.revision)])
            return
        status = agreement_status(pair, services)
        if status.active:
            replicas = self._workloads.by_index("service", str(pair.callee))
            found = endpoints(replicas, lambda node: self._nodes.get(f"/{node}"))
            status = msgspec.structs.replace(status, endpoints=found)
        if known is None or entry is None:
            made = put_new(
                build_agreement(pair, status), uid=self.context.new_uid(), now=self.context.timestamp
            )
            await self._agreements.wait_for(await self.context.commit([made]))
        elif (
            msgspec.structs.replace(
                known.status, active=status.active, missing=status.missing, endpoints=status.endpoints
            )
            != known.status
        ):
            await self.context.commit([with_status(entry, status)])
