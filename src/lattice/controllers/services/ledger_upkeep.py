"""Keep ledgers at the budget terms and prices of now: a changed limit shows at once, and a price change re-prices
the machines that run, after their spending is counted at the previous price."""

from collections.abc import Callable
from dataclasses import dataclass

from lattice.controllers.runtime.context import ControllerContext
from lattice.controllers.runtime.loop import Concurrency, Loop, Requeue, Source
from lattice.controllers.services.ledger_commit import (
    BUDGET_OWNER_KINDS,
    LedgerCommitter,
    LedgerUpdate,
    Payment,
)
from lattice.kinds.cluster import LatticeCluster
from lattice.kinds.infrastructure import CloudInfrastructure
from lattice.kinds.ledger import LatticeLedger, ledger_spec
from lattice.kinds.node_class import LatticeNodeClass
from lattice.kinds.pool import LatticePool
from lattice.placement.inputs.ledger_math import NodeGroup, judge_budget, reprice
from lattice.placement.inputs.price_book import PriceBook, price_of

# Interval of the resync: a price file may change, and a month may end, without a change of any object.
PRICE_RESYNC_S = 30.0


@dataclass
class LedgerUpkeepController:
    """Re-price the ledgers of one budget owner and bring their terms up to date; the key is the owner, such as
    `LatticePool/us-east`. The ledgers of one owner change in one commit."""

    context: ControllerContext
    price_book: Callable[[], PriceBook] = PriceBook.builtin
    name: str = "ledgers"

    def __post_init__(self) -> None:
        self._ledgers = self.context.cache(LatticeLedger)
        self._clusters = self.context.cache(LatticeCluster)
        self._classes = self.context.cache(LatticeNodeClass)
        self._committer = LedgerCommitter(
            self.context.store, self.context.clock, self.context.term, self.context.new_uid
        )

    def loop(self) -> Loop:
        owners = [
            Source(self.context.cache(kind), lambda change, name=name: (f"{name}/{change.key.name}",))  # type: ignore[misc]
            for name, kind in BUDGET_OWNER_KINDS.items()
        ]
        ledgers = Source(
            self._ledgers,
            lambda change: () if (ledger := self._ledgers.get(change.key.path)) is None else (_key(ledger),),
        )
        classes = Source(self._classes, lambda _: self.owner_keys())
        return Loop(
            self,
            self.context.clock,
            self.context.rng,
            self.owner_keys,
            (*owners, ledgers, classes),
            Concurrency(workers=1, resync_s=PRICE_RESYNC_S),
        )

    def owner_keys(self) -> list[str]:
        return sorted({_key(ledger) for ledger in self._ledgers.objects()})

    async def reconcile(self, key: str) -> Requeue | None:
        updates = []
        for ledger in self._ledgers.objects():
            # A ledger whose amounts do not add up stays as it is: an operator must restore the ledger.
            if _key(ledger) == key and not any(True for _ in ledger.problems()):
                prices = self._prices(ledger)
                if self._is_outdated(ledger, prices):
                    updates.append(LedgerUpdate(ledger.spec.budget, prices))
        if updates:
            result = await self._committer.commit_with_charges(Payment([], updates=updates))
            # The next reconcile must not see the ledgers of before.
            await self._ledgers.wait_for(getattr(result, "revision", 0))
        return None

    def _is_outdated(self, ledger: LatticeLedger, prices: dict[NodeGroup, int | None]) -> bool:
        account, now = ledger.spec.budget, self.context.clock.now()
        owner = self.context.cache(BUDGET_OWNER_KINDS[account.kind]).get(f"/{account.name}")
        terms = ledger_spec(account, owner)
        if terms is not None and terms != ledger.spec:
            return True
        if reprice(ledger, prices, now).status.machines != ledger.status.machines:
            return True
        # The phase also changes with time, such as at the beginning of a month.
        return (
            bool(ledger.status.phase)
            and judge_budget(ledger, now, previous=ledger.status.phase).state.value != ledger.status.phase
        )

    def _prices(self, ledger: LatticeLedger) -> dict[NodeGroup, int | None]:
        """The price of now by cluster and class; None is unknown. A cluster that the cache does not hold yet is
        left out."""
        book = self.price_book()
        prices: dict[NodeGroup, int | None] = {}
        for name, lots in ledger.status.machines.items():
            cluster = self._clusters.get(f"/{name}")
            if cluster is None:
                continue
            provider, region = self._place(cluster)
            for node_class in {lot.node_class for lot in lots}:
                machine_class = self._classes.get(f"/{node_class}")
                price = None if machine_class is None else price_of(machine_class, provider, region, book)
                prices[name, node_class] = None if price is None else price.micros
        return prices

    def _place(self, cluster: LatticeCluster) -> tuple[str, str]:
        """Provider and region that decide the price: those of the offer, or of the cluster if the offer is gone."""
        spec = cluster.spec
        pool = None if spec.infrastructure else self.context.cache(LatticePool).get(f"/{spec.pool}")
        if pool is not None:
            return pool.spec.provider.type, pool.spec.provider.region
        cloud = self.context.cache(CloudInfrastructure).get(f"/{spec.infrastructure}")
        return (cloud.spec.provider if cloud is not None else spec.provider), spec.region


def _key(ledger: LatticeLedger) -> str:
    return f"{ledger.spec.budget.kind}/{ledger.spec.budget.name}"
