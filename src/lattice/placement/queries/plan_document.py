"""Documents of plans and costs: the source of tables, of `-o json` and of server responses."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.engine.plugin import Shortfall
from lattice.kinds.meta.quantity import format_plain_dollars
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.inputs.bill import Bill
from lattice.placement.inputs.ledger_math import rate_per_30_days
from lattice.placement.model.demand import Demand, service_source
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World
from lattice.placement.plan.budget_change import BudgetChange
from lattice.placement.plan.plan import (
    FleetState,
    ManifestChange,
    PlacementKey,
    Plan,
    ServiceChange,
)

Document = dict[str, Any]
# Limit of unplaced services that are judged one by one; if more are unplaced, services with equal demands
# share a verdict.
MAX_INDIVIDUAL_VERDICTS = 50
DECLARED_PRICE_PREFIX = "costPerHour of class "
ESTIMATED_PREFIX = "estimated"


def money_document(micros: int) -> Document:
    """Return an amount as an exact integer and as dollars."""
    return {"micros": micros, "dollars": format_plain_dollars(micros)}


def rate_document(micros: int) -> Document:
    """Return a cost per hour and per 30 days."""
    month = rate_per_30_days(micros)
    return {
        "hourlyMicros": micros,
        "hourly": format_plain_dollars(micros),
        "projected30DayMicros": month,
        "projected30Day": format_plain_dollars(month),
    }


def rate_change_document(old: int, new: int) -> Document:
    return {
        "before": rate_document(old),
        "after": rate_document(new),
        "change": rate_document(new - old),
    }


def place_documents(counts: Mapping[PlacementKey, int]) -> list[Document]:
    """Return replicas by pool, cluster and class; most replicas first, then by name."""
    most_first = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"pool": pool, "cluster": cluster, "class": node_class, "replicas": count}
        for (pool, cluster, node_class), count in most_first
    ]


def shortfall_document(shortfall: Shortfall, plugin: str = "") -> Document:
    document = {
        "what": shortfall.what,
        "need": shortfall.need,
        "have": shortfall.have,
        "missing": shortfall.missing,
    }
    return {"filter": plugin, **document} if plugin else document


def plan_document(plan: Plan, before: FleetState, after: FleetState, world: World) -> Document:
    """Return the plan as a document; `world` is the present world without assumed changes."""
    changed = [service.name for service in plan.services]
    would_move = []
    for service in plan.would_move:
        # An unplaced service is listed as unplaced only.
        if service.name not in plan.unplaced:
            destination = None if service.destination is None else place_documents(service.destination)
            would_move.append({"name": service.name, "reasons": list(service.reasons), "to": destination})
    return {
        "ask": "plan",
        "id": plan.id,
        "isEmpty": plan.is_empty,
        "isFeasible": plan.is_feasible,
        "declared": [_manifest_change(change) for change in plan.manifest_changes],
        "services": [_service(service, before, after) for service in plan.services],
        "clusters": [
            {
                "mark": cluster.mark,
                "name": cluster.name,
                "pool": cluster.offer,
                "before": dict(sorted(cluster.nodes_before.items())),
                "after": dict(sorted(cluster.nodes_after.items())),
                "cost": rate_change_document(_bill_of(cluster.name, before), _bill_of(cluster.name, after)),
                "isPriced": not any(
                    state.bill.unpriced_clusters.get(cluster.name) for state in (before, after)
                ),
            }
            for cluster in plan.clusters
        ],
        "pools": _pool_documents(plan, before, after),
        "total": {
            **rate_change_document(*plan.total),
            "unpriced": {
                "before": before.bill.unpriced_machines,
                "after": after.bill.unpriced_machines,
            },
        },
        "surge": _surge_document(plan, before, after),
        "pending": _pending_document(before, world),
        "overhead": rate_change_document(_overhead(before), _overhead(after)),
        "month": after.world.now.strftime("%Y-%m") if after.world.now else None,
        "budgets": [_budget(budget, before) for budget in plan.budgets],
        "wouldMove": would_move,
        "unplaced": [
            {**document, "isUntouched": document["name"] in plan.untouched}
            for document in _unplaced_documents(plan.unplaced, before, after)
        ],
        "risks": list(plan.risks),
        "findings": [
            {
                "subject": finding.subject,
                "type": finding.type,
                "reason": finding.reason,
                "message": finding.message,
            }
            for finding in after.world.findings
        ],
        "prices": price_document(after.fleet, after.bill),
        "latencies": latency_documents(after, changed),
    }


def _pool_documents(plan: Plan, before: FleetState, after: FleetState) -> list[Document]:
    """Return the offers whose rate changes, or their number of machines of unknown price."""
    unpriced = before.bill.unpriced_offers, after.bill.unpriced_offers
    counts = {
        name: tuple(offers.get(name, 0) for offers in unpriced) for name in {*unpriced[0], *unpriced[1]}
    }
    changed = {name for name, (old, new) in counts.items() if old != new}
    documents = []
    for name in sorted({*plan.rates, *changed}):
        rates = before.offer_rates.get(name, 0), after.offer_rates.get(name, 0)
        old, new = counts.get(name, (0, 0))
        documents.append(
            {"name": name, **rate_change_document(*rates), "unpriced": {"before": old, "after": new}}
        )
    return documents


def _surge_document(plan: Plan, before: FleetState, after: FleetState) -> Document | None:
    """Return what the updates need until they end: machines beside the final state, and the cost at the peak.
    None if the plan updates no running replica."""
    surge = plan.surge
    if not surge.services and not surge.blocked:
        return None
    # Machines that the plan removes stay until the updates have ended.
    removed = Counter(
        {
            (name, node_class): count - after.clusters.get(name, Counter())[node_class]
            for name, counts in before.clusters.items()
            for node_class, count in counts.items()
        }
    )
    leaving = 0
    for row, kind in before.fleet.machines.machine_type.items():
        group = (before.fleet.machines.cluster[row].name, kind.name)
        if removed[group] > 0:
            removed[group] -= 1
            leaving += kind.rate
    machines = [
        {"cluster": cluster, "pool": after.offer_of[cluster], "class": node_class, "machines": count}
        for cluster, counts in sorted(surge.machines.items())
        for node_class, count in sorted(counts.items())
    ]
    return {
        "services": list(surge.services),
        "machines": machines,
        "peak": rate_document(plan.total[1] + leaving + surge.rate),
        "isPriced": not (before.bill.unpriced_machines or after.bill.unpriced_machines),
        "blocked": [{"name": name, "reason": reason} for name, reason in sorted(surge.blocked.items())],
    }


def _pending_document(before: FleetState, world: World) -> Document | None:
    """Return the pending work that the plan assumes to be done; None without such work.

    `before` is the cost of the existing machines, `after` the cost once the pending work is done.
    """
    current = FleetState.current(world)
    pending = [
        name
        for name in sorted({*current.replica_counts, *before.replica_counts})
        if current.replica_counts.get(name) != before.replica_counts.get(name)
    ]
    if not pending and current.offer_rates == before.offer_rates:
        return None
    return {
        "services": pending,
        "cost": rate_change_document(sum(current.offer_rates.values()), sum(before.offer_rates.values())),
        "unpricedMachines": current.bill.unpriced_machines,
    }


def _manifest_change(change: ManifestChange) -> Document:
    kind, namespace, name = change.object
    fields = [{"path": path, "before": old, "after": new} for path, old, new in change.fields]
    return {
        "mark": change.mark,
        "kind": kind,
        **({"namespace": namespace} if namespace else {}),
        "name": name,
        "fields": fields,
        "isRestarted": change.is_restarted,
    }


def _overhead(state: FleetState) -> int:
    """The part of the bill that no service pays: machines without replicas."""
    return state.bill.total - sum(state.service_rates.values())


def _service(change: ServiceChange, before: FleetState, after: FleetState) -> Document:
    demand = after.world.demands.get(change.name)
    return {
        "mark": change.mark,
        "name": change.name,
        "isPlaced": change.is_placed,
        "isPriced": change.name not in before.unpriced_services | after.unpriced_services,
        "replicas": demand.replicas if demand else 0,
        "before": place_documents(change.placed_before),
        "after": place_documents(change.placed_after),
        "cost": rate_change_document(change.cost_before, change.cost_after),
    }


def _bill_of(cluster: str, state: FleetState) -> int:
    return state.bill.cluster_rates.get(cluster, 0)


def _budget(change: BudgetChange, before: FleetState) -> Document:
    """The change of a budget; the limit may change too, and a new budget had no limit."""
    previous = before.world.supply.budgets.get(change.ledger)
    # Without a previous limit both percentages refer to the new limit.
    old_limit = change.limit if previous is None or previous.limit is None else previous.limit
    return {
        "ledger": change.ledger,
        "subject": change.subject,
        "limit": money_document(change.limit),
        "limitBefore": money_document(old_limit),
        "before": money_document(change.projected_before),
        "after": money_document(change.projected_after),
        "percentBefore": replace(change, limit=old_limit).percent(change.used_before),
        "percentAfter": change.percent(change.used_after),
        "alertPercent": change.alert_millionths // 10_000,
        "isHard": change.hard,
        "left": None if change.headroom is None else rate_document(change.headroom),
        "cheapestMachine": None
        if change.cheapest_machine_rate is None
        else rate_document(change.cheapest_machine_rate),
        "isUsedUp": change.is_exhausted,
    }


def _unplaced_documents(names: Sequence[str], before: FleetState, after: FleetState) -> list[Document]:
    """Return the unplaced services with their verdicts.

    After the first MAX_INDIVIDUAL_VERDICTS services, the verdict of a service is reused for later services
    with an equal demand. Where a reused verdict names the earlier service as the source of a blocker, the
    name of the later service replaces that name.
    """
    by_demand: dict[object, tuple[str, Document]] = {}
    documents = []
    for number, name in enumerate(names):
        placement = after.placements[name]
        key = (_demand_signature(placement.demand), len(after.fleet.assignments.get(name, ())))
        if number >= MAX_INDIVIDUAL_VERDICTS and key in by_demand:
            first, verdict = by_demand[key]
            own = service_source(placement.demand.name)
            # A blocker that the first service declares in its own spec is also in the spec of this service.
            conflicts = [
                [
                    {**blocker, "source": own if blocker["source"] == first else blocker["source"]}
                    for blocker in blockers
                ]
                for blockers in verdict["conflicts"]
            ]
            verdict = {**verdict, "conflicts": conflicts}
        else:
            verdict = verdict_document(judge(placement, after.fleet, after.world.services))
        # A verdict with conflicting requirements is not shared, because only the sources of blockers are
        # replaced above, not the sources of conflicting requirements.
        if not verdict["contradictions"]:
            by_demand.setdefault(key, (service_source(placement.demand.name), verdict))
        documents.append(
            {
                "name": name,
                "isNew": name not in before.unplaced,
                "replicas": after.world.demands[name].replicas,
                "missing": placement.missing,
                **verdict,
            }
        )
    return documents


def _demand_signature(demand: Demand) -> object:
    """A value that is equal for services that differ only in their names."""
    own = service_source(demand.name)
    requirements = tuple(
        (
            requirement.kind,
            requirement.value,
            requirement.amount,
            requirement.source != own and requirement.source,
        )
        for requirement in demand.requirements
    )
    return (requirements, demand.machine_shape, demand.latency_to, demand.rule_conflict)


def verdict_document(verdict: Verdict) -> Document:
    contradictions = []
    for conflict in verdict.conflicting_requirements:
        sides = [{"text": side.text, "source": side.source} for side in (conflict.first, conflict.second)]
        contradictions.append({"sides": sides, "because": conflict.reason, "text": str(conflict)})
    return {
        "verdict": verdict.kind,
        "reason": verdict.reason,
        "conflicts": [
            [
                {"kind": blocker.kind, "text": str(blocker), "source": getattr(blocker, "source", "")}
                for blocker in blockers
            ]
            for blockers in verdict.blocker_sets
        ],
        "contradictions": contradictions,
        "waits": list(verdict.waits),
        "required": verdict.required.properties(),
    }


def price_document(fleet: Fleet, bill: Bill | None = None) -> Document:
    """Return the sources and dates of the machine prices, the classes without a known price, and the machines of
    unknown price on the bill."""
    used: Counter[tuple[str, _PricedClass]] = Counter()
    for row, machine_type in fleet.machines.machine_type.items():
        price = machine_type.price
        source, as_of = (price.source, price.as_of) if price else ("unknown", "")
        pool = fleet.offers[fleet.machines.cluster[row].offer_row].name
        used[pool, _PricedClass(machine_type.name, machine_type.rate, source, as_of, price is not None)] += 1
    classes: list[Document] = []
    for (pool, priced), count in sorted(used.items(), key=lambda item: (item[0][0], item[0][1].name)):
        classes.append(
            {
                "pool": pool,
                "class": priced.name,
                "machines": count,
                **rate_document(priced.micros),
                "source": priced.source,
                "asOf": priced.as_of,
                "isPriced": priced.is_priced,
                "isDeclared": priced.source.startswith(DECLARED_PRICE_PREFIX),
            }
        )
    sources: Counter[tuple[str, str]] = Counter()
    for document in classes:
        source = document["source"]
        # The source of a declared price names the class; without the class, all declared prices have the same
        # source.
        if document["isDeclared"]:
            suffix = source[len(document["class"]) + len(DECLARED_PRICE_PREFIX) :]
            source = "costPerHour of node classes" + suffix
        sources[source, document["asOf"]] += document["machines"]
    unknown = set()
    for offer in fleet.offers:
        for machine_type in offer.types:
            if not machine_type.is_priced:
                unknown.add(f"{offer.name}/{machine_type.name}")
    return {
        "sources": [
            {"source": source, "asOf": as_of, "machines": count}
            for (source, as_of), count in sorted(sources.items())
        ],
        "classes": classes,
        "unknown": sorted(unknown),
        "unpriced": [
            {
                "pool": line.offer,
                "cluster": line.cluster,
                "class": line.node_class,
                "machines": line.count,
                "lastKnown": rate_document(line.micros) if line.micros else None,
            }
            for line in (bill.lines if bill is not None else ())
            if not line.is_priced
        ],
    }


@dataclass(frozen=True, slots=True)
class _PricedClass:
    """A node class with its price, hashable by the figures that the document shows."""

    name: str
    micros: int
    source: str
    as_of: str
    is_priced: bool = True


def latency_documents(state: FleetState, names: Iterable[str]) -> list[Document]:
    """Return, for every latency limit of the services and every pool of their replicas, the latency to the
    nearest replica of the dependency, and the source of the figure."""
    fleet = state.fleet
    demands = [state.world.demands[name] for name in names if name in state.world.demands]
    documents = []
    for demand in demands:
        for limit in demand.latency:
            target = dict(demand.latency_to)[limit.value]
            for row in sorted(fleet.replicas.by_offer(demand.name)):
                origin = fleet.offers[row].place
                round_trips = []
                for target_row in sorted(fleet.replicas.by_offer(target)):
                    place = fleet.offers[target_row].place
                    if rtt := fleet.latencies.between(origin, place):
                        round_trips.append((rtt.ms, place.name, rtt.source))
                ms, target_name, source = min(round_trips, default=(None, None, "unknown"))
                documents.append(
                    {
                        "service": demand.name,
                        "dependency": limit.value,
                        "maxMs": limit.amount,
                        "from": origin.name,
                        "to": target_name,
                        "ms": ms,
                        "source": source,
                        "isEstimate": source.startswith(ESTIMATED_PREFIX),
                    }
                )
    return documents
