"""Documents of plans and costs: the source of tables, of `-o json` and of server responses."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.engine.plugin import Shortfall
from lattice.kinds.meta.quantity import MILLIONTHS, format_plain_dollars
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.greedy.placement_order import ordered_demands
from lattice.placement.inputs.ledger_math import rate_per_30_days
from lattice.placement.model.costs import fleet_costs, placed_costs
from lattice.placement.model.demand import Demand, service_source
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.world import World
from lattice.placement.plan.plan import (
    BudgetChange,
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
        "services": [_service(service, after) for service in plan.services],
        "clusters": [
            {
                "mark": cluster.mark,
                "name": cluster.name,
                "pool": cluster.offer,
                "before": dict(sorted(cluster.nodes_before.items())),
                "after": dict(sorted(cluster.nodes_after.items())),
                "cost": rate_change_document(_bill_of(cluster.name, before), _bill_of(cluster.name, after)),
            }
            for cluster in plan.clusters
        ],
        "pools": [{"name": name, **rate_change_document(*rates)} for name, rates in plan.rates.items()],
        "total": rate_change_document(*plan.total),
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
        "findings": _finding_documents(after),
        "prices": price_document(after.fleet),
        "latencies": latency_documents(after, changed),
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
    """The cost of machines without replicas, which no service pays for."""
    return sum(fleet_costs(state.fleet).overhead.values()) + sum(state.orphaned.overhead.values())


def _service(change: ServiceChange, after: FleetState) -> Document:
    demand = after.world.demands.get(change.name)
    return {
        "mark": change.mark,
        "name": change.name,
        "isPlaced": change.is_placed,
        "replicas": demand.replicas if demand else 0,
        "before": place_documents(change.placed_before),
        "after": place_documents(change.placed_after),
        "cost": rate_change_document(change.cost_before, change.cost_after),
    }


def _bill_of(cluster: str, state: FleetState) -> int:
    fleet = state.fleet
    placed = fleet.clusters.get(cluster)
    if placed is None:
        return state.orphaned.cluster_rates.get(cluster, 0)
    return sum(fleet.machines.machine_type[machine].rate for machine in placed.machines)


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
        "percentBefore": replace(change, limit=old_limit).percent(change.projected_before),
        "percentAfter": change.percent(change.projected_after),
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


def _finding_documents(state: FleetState) -> list[Document]:
    """Return the findings about the declared supply."""
    return [
        {
            "subject": finding.subject,
            "type": finding.type,
            "reason": finding.reason,
            "message": finding.message,
        }
        for finding in state.world.findings
    ]


def price_document(fleet: Fleet) -> Document:
    """Return the sources and dates of the machine prices, and the classes without a known price."""
    used: Counter[tuple[str, _PricedClass]] = Counter()
    for row, machine_type in fleet.machines.machine_type.items():
        price = machine_type.price
        source, as_of = (price.source, price.as_of) if price else ("unknown", "")
        pool = fleet.offers[fleet.machines.cluster[row].offer_row].name
        used[pool, _PricedClass(machine_type.name, machine_type.rate, source, as_of)] += 1
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
    }


@dataclass(frozen=True, slots=True)
class _PricedClass:
    """A node class with its price, hashable by the figures that the document shows."""

    name: str
    micros: int
    source: str
    as_of: str


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


def cost_document(state: FleetState, by: str, namespace: str = "") -> Document:
    """Return the costs by pool, service or label:KEY. A machine counts in exactly one row: the rows sum to
    the total.

    With a namespace only costs of its services are returned, without machines that hold no replicas.
    """
    # Each row is a name, micro-dollars per hour, and the part of that amount for machines without replicas.
    rows = _costs(state, by) if not namespace else _costs_in(state, by, namespace)
    total, overhead = sum(row[1] for row in rows), sum(row[2] for row in rows)
    unplaced = ordered_demands(state.world.demands[name] for name in state.unplaced)
    short = [demand for demand in unplaced if _is_in(demand.name, namespace)]
    placed = {demand.name: state.placed_replicas(demand.name) for demand in short}
    row_documents = []
    for name, micros, empty in rows:
        row_documents.append(
            {
                "name": name,
                **rate_document(micros),
                "shareMillionths": micros * MILLIONTHS // total if total else 0,
                "overhead": rate_document(empty),
            }
        )
    return {
        "ask": "cost",
        "by": by,
        "namespace": namespace or None,
        "rows": row_documents,
        "overhead": rate_document(overhead),
        "total": rate_document(total),
        "unplaced": [demand.name for demand in short if not placed[demand.name]],
        "partlyPlaced": [
            {"name": demand.name, "placed": placed[demand.name], "replicas": demand.replicas}
            for demand in short
            if placed[demand.name]
        ],
        "prices": price_document(state.fleet),
    }


def _is_in(service: str, namespace: str) -> bool:
    return not namespace or service.startswith(f"{namespace}/")


def _costs_in(state: FleetState, by: str, namespace: str) -> list[tuple[str, int, int]]:
    """The costs of services in the namespace by row, most expensive first."""
    names: Counter[str] = Counter()
    for service in {*state.fleet.assignments, *state.orphaned.service_shares}:
        if _is_in(service, namespace):
            shares = [(pool, micros) for (pool, _, _), micros in placed_costs(state.fleet, service).items()]
            for pool, micros in (*shares, *state.orphaned.service_shares.get(service, {}).items()):
                names[_row_name(state, by, service, pool)] += micros
    return sorted(((name, micros, 0) for name, micros in names.items()), key=lambda row: (-row[1], row[0]))


def _row_name(state: FleetState, by: str, service: str, pool: str) -> str:
    if by in ("pool", "service"):
        return pool if by == "pool" else service
    key = by.removeprefix("label:")
    stored = state.world.services.get(service)
    labels = (stored.metadata.labels or {}) if stored else {}
    return labels.get(key, f"(no label {key})")


def _costs(state: FleetState, by: str) -> list[tuple[str, int, int]]:
    """Rows of name, micro-dollars per hour, and the part of that amount for machines without replicas; most
    expensive first, with the rows of machines without replicas last."""
    # Machines without replicas belong to no service; they get rows of their own unless rows are pools.
    overhead = {**fleet_costs(state.fleet).overhead, **state.orphaned.overhead}
    if by == "pool":
        rows = [(name, micros, overhead.get(name, 0)) for name, micros in state.offer_rates.items()]
        return sorted(rows, key=lambda row: (-row[1], row[0]))
    names: Counter[str] = Counter()
    for service, micros in state.service_rates.items():
        names[_row_name(state, by, service, "")] += micros
    empty = [(f"(empty nodes in {pool})", micros, micros) for pool, micros in sorted(overhead.items())]
    return [
        *sorted(((name, micros, 0) for name, micros in names.items()), key=lambda row: (-row[1], row[0])),
        *empty,
    ]
