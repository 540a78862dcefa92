"""Answers about the fleet as plain documents: what tables are drawn from, what `-o json` prints and what a server sends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.engine.plugin import Shortfall
from lattice.kinds.meta.quantity import format_dollars
from lattice.placement.explain.blockers import Blocker
from lattice.placement.explain.verdict import ConflictingRequirements, Verdict, judge
from lattice.placement.greedy.place_all import by_priority
from lattice.placement.inputs.ledger_math import rate_per_30_days
from lattice.placement.model.costs import fleet_costs, placed_costs
from lattice.placement.model.demand import Demand, service_source
from lattice.placement.model.fleet import Fleet
from lattice.placement.model.offer import MachineType
from lattice.placement.model.world import World
from lattice.placement.plan.plan import (
    BudgetChange,
    ClusterChange,
    FleetState,
    ManifestChange,
    MisplacedService,
    PlacementKey,
    Plan,
    ServiceChange,
)

Document = dict[str, Any]
MAX_INDIVIDUAL_VERDICTS = 50  # unplaced services that are judged one by one; of more, those that ask for the same are judged together
DECLARED_PRICE_PREFIX = "costPerHour of class "
ESTIMATED_PREFIX = "estimated"


def money_document(micros: int) -> Document:
    """An amount: exact as an integer, and as people write it."""
    return {"micros": micros, "dollars": format_dollars(micros)}


def rate_document(micros: int) -> Document:
    """What something costs in an hour, and in 30 days."""
    month = rate_per_30_days(micros)
    return {
        "hourlyMicros": micros,
        "hourly": format_dollars(micros),
        "projected30DayMicros": month,
        "projected30Day": format_dollars(month),
    }


def rate_change_document(before: int, after: int) -> Document:
    return {
        "before": rate_document(before),
        "after": rate_document(after),
        "change": rate_document(after - before),
    }


def place_documents(counts: Mapping[PlacementKey, int]) -> list[Document]:
    """Most replicas first, then by name."""
    most_first = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [
        {"pool": pool, "cluster": cluster, "class": kind, "replicas": count}
        for (pool, cluster, kind), count in most_first
    ]


def shortfall_document(each: Shortfall, plugin: str = "") -> Document:
    found = {"what": each.what, "need": each.need, "have": each.have, "missing": each.missing}
    return {"filter": plugin, **found} if plugin else found


def plan_document(made: Plan, before: FleetState, after: FleetState, now: World) -> Document:
    """The whole of a plan. `now`: what there is, before anything that is only assumed."""
    changed = [each.name for each in made.services]
    return {
        "ask": "plan",
        "id": made.id,
        "isEmpty": made.is_empty,
        "isFeasible": made.is_feasible,
        "declared": [_manifest_change(each) for each in made.manifest_changes],
        "services": [_service(each, after) for each in made.services],
        "clusters": [_cluster(each, before, after) for each in made.clusters],
        "pools": [{"name": name, **rate_change_document(*each)} for name, each in made.rates.items()],
        "total": rate_change_document(*made.total),
        "pending": pending_document(before, now),
        "overhead": rate_change_document(_overhead(before), _overhead(after)),
        "month": after.world.now.strftime("%Y-%m") if after.world.now else None,
        "budgets": [_budget(each, before) for each in made.budgets],
        "wouldMove": [_misplaced_service(each) for each in made.would_move if each.name not in made.unplaced],
        "unplaced": [
            {**each, "isUntouched": each["name"] in made.untouched}
            for each in unplaced_documents(made.unplaced, before, after)
        ],
        "risks": list(made.risks),
        "findings": finding_documents(after),
        "prices": price_document(after.fleet),
        "latencies": latency_documents(after, changed),
    }


def pending_document(before: FleetState, now: World) -> Document | None:
    """What is taken as done though it is not: what has its place only on paper. None: it is as it is.

    What is paid now is what the machines cost that are there, whatever is asked.
    """
    real = FleetState.current(now)
    late = [
        name
        for name in sorted({*real.replica_counts, *before.replica_counts})
        if real.replica_counts.get(name) != before.replica_counts.get(name)
    ]
    if not late and real.offer_rates == before.offer_rates:
        return None
    return {
        "services": late,
        "cost": rate_change_document(sum(real.offer_rates.values()), sum(before.offer_rates.values())),
    }


def _manifest_change(each: ManifestChange) -> Document:
    kind, namespace, name = each.object
    fields = [{"path": path, "before": old, "after": new} for path, old, new in each.fields]
    return {
        "mark": each.mark,
        "kind": kind,
        **({"namespace": namespace} if namespace else {}),
        "name": name,
        "fields": fields,
        "isRestarted": each.is_restarted,
    }


def _overhead(settled: FleetState) -> int:
    """Machines that nobody is on: no service pays for them."""
    return sum(fleet_costs(settled.fleet).overhead.values()) + sum(settled.orphaned.overhead.values())


def _service(each: ServiceChange, after: FleetState) -> Document:
    wanted = after.world.demands.get(each.name)
    return {
        "mark": each.mark,
        "name": each.name,
        "isPlaced": each.is_placed,
        "replicas": wanted.replicas if wanted else 0,
        "before": place_documents(each.placed_before),
        "after": place_documents(each.placed_after),
        "cost": rate_change_document(each.cost_before, each.cost_after),
    }


def _cluster(each: ClusterChange, before: FleetState, after: FleetState) -> Document:
    return {
        "mark": each.mark,
        "name": each.name,
        "pool": each.offer,
        "before": dict(sorted(each.nodes_before.items())),
        "after": dict(sorted(each.nodes_after.items())),
        "cost": rate_change_document(_bill_of(each.name, before), _bill_of(each.name, after)),
    }


def _bill_of(cluster: str, settled: FleetState) -> int:
    fleet = settled.fleet
    found = fleet.clusters.get(cluster)
    return (
        sum(fleet.machines.machine_type[machine].rate for machine in found.machines)
        if found
        else settled.orphaned.cluster_rates.get(cluster, 0)
    )


def _budget(each: BudgetChange, before: FleetState) -> Document:
    """The limit itself may change; a budget that is new had none."""
    known = before.world.supply.budgets.get(each.ledger)
    old = each.limit if known is None or known.limit is None else known.limit
    return {
        "ledger": each.ledger,
        "subject": each.subject,
        "limit": money_document(each.limit),
        "limitBefore": money_document(old),
        "before": money_document(each.projected_before),
        "after": money_document(each.projected_after),
        "percentBefore": replace(each, limit=old).percent(each.projected_before),
        "percentAfter": each.percent(each.projected_after),
        "alertPercent": each.alert_millionths // 10_000,
        "isHard": each.hard,
        "left": None if each.headroom is None else rate_document(each.headroom),
        "cheapestMachine": None
        if each.cheapest_machine_rate is None
        else rate_document(each.cheapest_machine_rate),
        "isUsedUp": each.is_exhausted,
    }


def _misplaced_service(each: MisplacedService) -> Document:
    return {
        "name": each.name,
        "reasons": list(each.reasons),
        "to": None if each.destination is None else place_documents(each.destination),
    }


def unplaced_documents(names: Sequence[str], before: FleetState, after: FleetState) -> list[Document]:
    """Each with its verdict. Of very many, those that ask for the same get the verdict of the first of them, in their own name."""
    known: dict[object, tuple[str, Document]] = {}
    found = []
    for number, name in enumerate(names):
        placement = after.placements[name]
        asked = (_demand_signature(placement.demand), len(after.fleet.assignments.get(name, ())))
        first, told = known.get(asked, ("", {})) if number >= MAX_INDIVIDUAL_VERDICTS else ("", {})
        told = (
            _with_own_source(placement.demand, first, told)
            if first
            else verdict_document(judge(placement, after.fleet, after.world.services))
        )
        if not told["contradictions"]:
            known.setdefault(asked, (service_source(placement.demand.name), told))
        is_new, wanted = name not in before.unplaced, after.world.demands[name].replicas
        found.append(
            {"name": name, "isNew": is_new, "replicas": wanted, "missing": placement.missing, **told}
        )
    return found


def _demand_signature(demand: Demand) -> object:
    """Equal for services that differ in their name only."""
    own = service_source(demand.name)
    requirements = tuple(
        (each.kind, each.value, each.amount, each.source != own and each.source)
        for each in demand.requirements
    )
    return (requirements, demand.machine_shape, demand.latency_to, demand.rule_conflict)


def _with_own_source(demand: Demand, first: str, told: Document) -> Document:
    own = service_source(demand.name)
    conflicts = [
        [{**part, "source": own if part["source"] == first else part["source"]} for part in parts]
        for parts in told["conflicts"]
    ]
    return {**told, "conflicts": conflicts}


def verdict_document(found: Verdict) -> Document:
    return {
        "verdict": found.kind,
        "reason": found.reason,
        "conflicts": [[blocker_document(part) for part in parts] for parts in found.blocker_sets],
        "contradictions": [_conflicting_requirements(each) for each in found.conflicting_requirements],
        "waits": list(found.waits),
        "required": found.required.properties(),
    }


def _conflicting_requirements(each: ConflictingRequirements) -> Document:
    sides = [{"text": side.text, "source": side.source} for side in (each.first, each.second)]
    return {"sides": sides, "because": each.reason, "text": str(each)}


def blocker_document(each: Blocker) -> Document:
    """Something in the way, and who says so."""
    return {"kind": each.kind, "text": str(each), "source": getattr(each, "source", "")}


def finding_documents(settled: FleetState) -> list[Document]:
    """What is wrong with the supply as it is declared."""
    return [
        {"subject": each.subject, "type": each.type, "reason": each.reason, "message": each.message}
        for each in settled.world.findings
    ]


def price_document(fleet: Fleet) -> Document:
    """Where the prices of the machines come from, and as of when; and of which nobody knows one."""
    used = Counter(
        (fleet.offers[fleet.machines.cluster[row].offer_row].name, kind) for row, kind in _machines(fleet)
    )
    classes = [
        _priced(pool, kind, count)
        for (pool, kind), count in sorted(used.items(), key=lambda each: (each[0][0], each[0][1].name))
    ]
    sources: Counter[tuple[str, str]] = Counter()
    for each in classes:
        source = (
            "costPerHour of node classes" + each["source"][len(each["class"]) + len(DECLARED_PRICE_PREFIX) :]
            if each["isDeclared"]
            else each["source"]
        )
        sources[source, each["asOf"]] += each["machines"]
    unknown = {
        f"{offer.name}/{kind.name}" for offer in fleet.offers for kind in offer.types if not kind.is_priced
    }
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
    """A class of machines in an offer; hashed by what is shown of it."""

    name: str
    micros: int
    source: str
    as_of: str


def _machines(fleet: Fleet) -> Iterator[tuple[int, _PricedClass]]:
    for row, kind in fleet.machines.machine_type.items():
        yield row, _priced_class(kind)


def _priced_class(kind: MachineType) -> _PricedClass:
    price = kind.price
    return _PricedClass(
        kind.name, kind.rate, price.source if price else "unknown", price.as_of if price else ""
    )


def _priced(pool: str, kind: _PricedClass, count: int) -> Document:
    return {
        "pool": pool,
        "class": kind.name,
        "machines": count,
        **rate_document(kind.micros),
        "source": kind.source,
        "asOf": kind.as_of,
        "isDeclared": kind.source.startswith(DECLARED_PRICE_PREFIX),
    }


def latency_documents(settled: FleetState, names: Iterable[str]) -> list[Document]:
    """Of the limits that these services state, what each place they are in comes to, and who says so."""
    demands = [settled.world.demands[name] for name in names if name in settled.world.demands]
    return [
        {
            "service": demand.name,
            "dependency": required.value,
            "maxMs": required.amount,
            **_nearest(settled, row, target),
        }
        for demand in demands
        for required in demand.latency
        for target in [dict(demand.latency_to)[required.value]]
        for row in sorted(settled.fleet.replicas_by_offer(demand.name))
    ]


def _nearest(settled: FleetState, row: int, target: str) -> Document:
    fleet = settled.fleet
    here = fleet.offers[row].place
    there = [fleet.offers[each].place for each in sorted(fleet.replicas_by_offer(target))]
    known = [
        (rtt.ms, place.name, rtt.source) for place in there if (rtt := fleet.latencies.between(here, place))
    ]
    ms, to, source = min(known, default=(None, None, "unknown"))
    return {
        "from": here.name,
        "to": to,
        "ms": ms,
        "source": source,
        "isEstimate": source.startswith(ESTIMATED_PREFIX),
    }


def cost_document(settled: FleetState, by: str, namespace: str = "") -> Document:
    """Every machine is in exactly one row: rows sum to the total. `by`: pool, service or label:KEY.

    With a namespace: what its services pay, and nothing for machines that nobody is on.
    """
    found = _costs(settled, by) if not namespace else _costs_in(settled, by, namespace)
    total, overhead = sum(each[1] for each in found), sum(each[2] for each in found)
    short = [
        each
        for each in by_priority(settled.world.demands[name] for name in settled.unplaced)
        if _is_in(each.name, namespace)
    ]
    seats = {each.name: settled.placed_replicas(each.name) for each in short}
    return {
        "ask": "cost",
        "by": by,
        "namespace": namespace or None,
        "rows": [_cost_row(total, *each) for each in found],
        "overhead": rate_document(overhead),
        "total": rate_document(total),
        "unplaced": [each.name for each in short if not seats[each.name]],
        "partlyPlaced": [
            {"name": each.name, "placed": seats[each.name], "replicas": each.replicas}
            for each in short
            if seats[each.name]
        ],
        "prices": price_document(settled.fleet),
    }


def _is_in(service: str, namespace: str) -> bool:
    return not namespace or service.startswith(f"{namespace}/")


def _costs_in(settled: FleetState, by: str, namespace: str) -> list[tuple[str, int, int]]:
    names: Counter[str] = Counter()
    for service in {*settled.fleet.assignments, *settled.orphaned.service_shares}:
        if _is_in(service, namespace):
            seated = [(pool, micros) for (pool, _, _), micros in placed_costs(settled.fleet, service).items()]
            for pool, micros in (*seated, *settled.orphaned.service_shares.get(service, {}).items()):
                names[_row_name(settled, by, service, pool)] += micros
    return sorted(((name, micros, 0) for name, micros in names.items()), key=lambda each: (-each[1], each[0]))


def _row_name(settled: FleetState, by: str, service: str, pool: str) -> str:
    if by in ("pool", "service"):
        return pool if by == "pool" else service
    return _label(settled, service, by.removeprefix("label:"))


def _cost_row(total: int, name: str, micros: int, overhead: int) -> Document:
    share = micros * 1_000_000 // total if total else 0
    return {
        "name": name,
        **rate_document(micros),
        "shareMillionths": share,
        "overhead": rate_document(overhead),
    }


def _costs(settled: FleetState, by: str) -> list[tuple[str, int, int]]:
    """Name, micro-dollars per hour, and how much of that is empty machines; the dearest first."""
    overhead = {**fleet_costs(settled.fleet).overhead, **settled.orphaned.overhead}
    if by == "pool":
        found = [(name, micros, overhead.get(name, 0)) for name, micros in settled.offer_rates.items()]
        return sorted(found, key=lambda each: (-each[1], each[0]))
    names: Counter[str] = Counter()
    for service, micros in settled.service_rates.items():
        names[_row_name(settled, by, service, "")] += micros
    empty = [(f"(empty nodes in {pool})", micros, micros) for pool, micros in sorted(overhead.items())]
    return [
        *sorted(((name, micros, 0) for name, micros in names.items()), key=lambda each: (-each[1], each[0])),
        *empty,
    ]


def _label(settled: FleetState, service: str, key: str) -> str:
    found = settled.world.services.get(service)
    return (found.metadata.labels or {}).get(key, f"(no label {key})") if found else f"(no label {key})"
