"""Reconcile agreements: create an agreement when a service declares a caller or callee, delete the agreement
when no service declares it any more."""

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
    """Reconcile the agreements in which a service is caller or callee; the key is the service,
    `namespace/name`."""

    context: ControllerContext
    name: str = "agreements"

    def __post_init__(self) -> None:
        self._services = self.context.cache(LatticeService)
        self._agreements = self.context.cache(LatticeAgreement)
        self._workloads = self.context.cache(LatticeWorkload)
        self._nodes = self.context.cache(LatticeNode)
        self._recorder = self.context.recorder("agreements")

    def loop(self) -> Loop:
        sources = (
            Source(self._services),
            Source(self._workloads, self.keys_for_workload),
            Source(self._agreements, self.keys_for_agreement),
        )
        return Loop(
            self, self.context.clock, self.context.rng, self.list_keys, sources, Concurrency(workers=1)
        )

    def list_keys(self) -> Iterable[str]:
        keys = {str(name_of(service)) for service in self._services.objects() if service.spec.resources}
        for agreement in self._agreements.objects():
            keys.update(map(str, pair_of(agreement)))
        return sorted(keys)

    def keys_for_workload(self, change: Change) -> Iterable[str]:
        """The services whose endpoints change: only readiness, binding and service of a workload count."""
        previous = self._workloads.previous_object
        current = self._workloads.get(change.key.path) if change.value else None
        states = {
            (workload.spec.service, workload.status.ready, workload.status.binding)
            for workload in (previous, current)
            if workload is not None and workload.spec.service
        }
        if len(states) <= 1 and None not in (previous, current):
            return ()
        return [f"{change.key.namespace}/{service}" for service in sorted({state[0] for state in states})]

    def keys_for_agreement(self, change: Change) -> Iterable[str]:
        agreement = self._agreements.get(change.key.path)
        return (str(pair_of(agreement).caller),) if agreement is not None else ()

    async def reconcile(self, key: str) -> Requeue | None:
        name = Name(*key.split("/", 1))
        services = {
            name_of(service): service
            for service in self._services.objects()
            if not service.metadata.deletion_timestamp
        }
        declared: set[Pair] = set()
        for service in services.values():
            declared.update(pair for pair in declared_pairs(service) if name in pair)
        existing = {
            pair_of(agreement): agreement
            for agreement in self._agreements.objects()
            if name in pair_of(agreement)
        }
        for pair in sorted(declared | set(existing)):
            entry = self._agreements.entry(f"{pair.caller.namespace}/{pair.object_name}")
            # No service declares the pair any more.
            if pair not in declared:
                if entry is not None:
                    await self.context.commit([Delete(entry.key, entry.revision)])
                continue
            status = agreement_status(pair, services)
            if status.active:
                replicas = self._workloads.by_index("service", str(pair.callee))
                addresses = endpoints(replicas, lambda node: self._nodes.get(f"/{node}"))
                status = msgspec.structs.replace(status, endpoints=addresses)
            agreement = existing.get(pair)
            if agreement is None or entry is None:
                created = build_agreement(pair, status)
                write = put_new(created, uid=self.context.new_uid(), now=self.context.timestamp)
                # The next reconcile must find the agreement in the cache, or a second create would conflict.
                await self._agreements.wait_for(await self.context.commit([write]))
                continue
            current = agreement.status
            if (status.active, status.missing, status.endpoints) != (
                current.active,
                current.missing,
                current.endpoints,
            ):
                await self.context.commit([with_status(entry, status)])
        return None
