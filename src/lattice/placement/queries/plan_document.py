"""Answers about the fleet as plain documents: what tables are drawn from, what `-o json` prints and what a server sends."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lattice.engine.plugin import Shortfall
from lattice.kinds.meta.quantity import format_micros
from lattice.placement.greedy.place_all import in_order
from lattice.placement.explain.contradiction import Contradiction
from lattice.placement.model.costs_part import cost_of, placed_costs
from lattice.placement.plan.declared import Declared
from lattice.placement.model.demand import Demand, own_source
from lattice.placement.model.fleet import Fleet
from lattice.placement.inputs.ledger_math import thirty_days
from lattice.placement.explain.blockers import Obstacle
from lattice.placement.model.offer import MachineType
from lattice.placement.plan.plan import (
    BudgetChange,
    ClusterChange,
    Moving,
    Plan,
    ServiceChange,
    Settled,
    Where,
)
from lattice.placement.explain.verdict import Verdict, judge
from lattice.placement.model.world import World

Document = dict[str, Any]
JUDGED = 50  # unplaced services that are judged one by one; of more, those that ask for the same are judged together
DECLARED = "costPerHour of class "
ESTIMATED = "estimated"


def money(micros: int) -> Document:
    """An amount: exact as an integer, and as people write it."""
    return {"micros": micros, "dollars": format_micros(micros)}


def rate(micros: int) -> Document:
    """What something costs in an hour, and in 30 days."""
    month = thirty_days(micros)
    return {
        "hourlyMicros": micros,
        "hourly": format_micros(micros),
        "projected30DayMicros": month,
        "projected30Day": format_micros(month),
    }


def changing(before: int, after: int) -> Document:
    return {"before": rate(before), "after": rate(after), "change": rate(after - before)}


def places(counts: Mapping[Where, int]) -> list[Document]:
    """Most replicas first, then by name."""
    most_first = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [
        {"pool": pool, "cluster": cluster, "class": kind, "replicas": count}
        for (pool, cluster, kind), count in most_first
    ]


def shortfall(each: Shortfall, plugin: str = "") -> Document:
    found = {"what": each.what, "need": each.need, "have": each.have, "missing": each.missing}
    return {"filter": plugin, **found} if plugin else found


def plan_document(made: Plan, before: Settled, after: Settled, now: World) -> Document:
    """The whole of a plan. `now`: what there is, before anything that is only assumed."""
    changed = [each.name for each in made.services]
    return {
        "ask": "plan",
        "id": made.id,
        "isEmpty": made.is_empty,
        "isFeasible": made.is_feasible,
        "declared": [_declared(each) for each in made.declared],
        "services": [_service(each, after) for each in made.services],
        "clusters": [_cluster(each, before, after) for each in made.clusters],
        "pools": [{"name": name, **changing(*each)} for name, each in made.rates.items()],
        "total": changing(*made.total),
        "pending": pending(before, now),
        "overhead": changing(_overhead(before), _overhead(after)),
        "month": after.world.now.strftime("%Y-%m") if after.world.now else None,
        "budgets": [_budget(each, before) for each in made.budgets],
        "wouldMove": [_moving(each) for each in made.would_move if each.name not in made.unplaced],
        "unplaced": [
            {**each, "isUntouched": each["name"] in made.untouched}
            for each in unplaced(made.unplaced, before, after)
        ],
        "risks": list(made.risks),
        "findings": findings(after),
        "prices": prices(after.fleet),
        "latencies": latencies(after, changed),
    }


def pending(before: Settled, now: World) -> Document | None:
    """What is taken as done though it is not: what has its place only on paper. None: it is as it is.

    What is paid now is what the machines cost that are there, whatever is asked.
    """
    real = Settled.now(now)
    late = [
        name
        for name in sorted({*real.where, *before.where})
        if real.where.get(name) != before.where.get(name)
    ]
    if not late and real.rates == before.rates:
        return None
    return {"services": late, "cost": changing(sum(real.rates.values()), sum(before.rates.values()))}


def _declared(each: Declared) -> Document:
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


def _overhead(settled: Settled) -> int:
    """Machines that nobody is on: no service pays for them."""
    return sum(cost_of(settled.fleet).overhead.values()) + sum(settled.adrift.overhead.values())


def _service(each: ServiceChange, after: Settled) -> Document:
    wanted = after.world.demands.get(each.name)
    return {
        "mark": each.mark,
        "name": each.name,
        "isPlaced": each.is_placed,
        "replicas": wanted.replicas if wanted else 0,
        "before": places(each.before),
        "after": places(each.after),
        "cost": changing(each.cost_before, each.cost_after),
    }


def _cluster(each: ClusterChange, before: Settled, after: Settled) -> Document:
    return {
        "mark": each.mark,
        "name": each.name,
        "pool": each.offer,
        "before": dict(sorted(each.before.items())),
        "after": dict(sorted(each.after.items())),
        "cost": changing(_bill_of(each.name, before), _bill_of(each.name, after)),
    }


def _bill_of(cluster: str, settled: Settled) -> int:
    fleet = settled.fleet
    found = fleet.clusters.get(cluster)
    return (
        sum(fleet.machines.kind[machine].rate for machine in found.machines)
        if found
        else settled.adrift.bills.get(cluster, 0)
    )


def _budget(each: BudgetChange, before: Settled) -> Document:
    """The limit itself may change; a budget that is new had none."""
    known = before.world.supply.budgets.get(each.ledger)
    old = each.limit if known is None or known.limit is None else known.limit
    return {
        "ledger": each.ledger,
        "subject": each.subject,
        "limit": money(each.limit),
        "limitBefore": money(old),
        "before": money(each.before),
        "after": money(each.after),
        "percentBefore": replace(each, limit=old).percent(each.before),
        "percentAfter": each.percent(each.after),
        "alertPercent": each.alert // 10_000,
        "isHard": each.hard,
        "left": None if each.left is None else rate(each.left),
        "cheapestMachine": None if each.machine is None else rate(each.machine),
        "isUsedUp": each.is_used_up,
    }


def _moving(each: Moving) -> Document:
    return {
        "name": each.name,
        "reasons": list(each.reasons),
        "to": None if each.to is None else places(each.to),
    }


def unplaced(names: Sequence[str], before: Settled, after: Settled) -> list[Document]:
    """Each with its verdict. Of very many, those that ask for the same get the verdict of the first of them, in their own name."""
    known: dict[object, tuple[str, Document]] = {}
    found = []
    for number, name in enumerate(names):
        placement = after.placements[name]
        asked = (_asked(placement.demand), len(after.fleet.seats.get(name, ())))
        first, told = known.get(asked, ("", {})) if number >= JUDGED else ("", {})
        told = (
            _in_the_name_of(placement.demand, first, told)
            if first
            else verdict(judge(placement, after.fleet, after.world.services))
        )
        if not told["contradictions"]:
            known.setdefault(asked, (own_source(placement.demand.name), told))
        is_new, wanted = name not in before.unplaced, after.world.demands[name].replicas
        found.append(
            {"name": name, "isNew": is_new, "replicas": wanted, "missing": placement.missing, **told}
        )
    return found


def _asked(demand: Demand) -> object:
    """Equal for services that differ in their name only."""
    own = own_source(demand.name)
    requirements = tuple(
        (each.kind, each.value, each.amount, each.source != own and each.source)
        for each in demand.requirements
    )
    return (requirements, demand.machine_shape, demand.latency_to, demand.problem)


def _in_the_name_of(demand: Demand, first: str, told: Document) -> Document:
    own = own_source(demand.name)
    conflicts = [
        [{**part, "source": own if part["source"] == first else part["source"]} for part in parts]
        for parts in told["conflicts"]
    ]
    return {**told, "conflicts": conflicts}


def verdict(found: Verdict) -> Document:
    return {
        "verdict": found.kind,
        "reason": found.reason,
        "conflicts": [[obstacle(part) for part in parts] for parts in found.conflicts],
        "contradictions": [_contradiction(each) for each in found.contradictions],
        "waits": list(found.waits),
        "required": found.required.properties(),
    }


def _contradiction(each: Contradiction) -> Document:
    sides = [{"text": side.text, "source": side.source} for side in (each.one, each.other)]
    return {"sides": sides, "because": each.because, "text": str(each)}


def obstacle(each: Obstacle) -> Document:
    """Something in the way, and who says so."""
    return {"kind": each.kind, "text": str(each), "source": getattr(each, "source", "")}


def findings(settled: Settled) -> list[Document]:
    """What is wrong with the supply as it is declared."""
    return [
        {"subject": each.subject, "type": each.type, "reason": each.reason, "message": each.message}
        for each in settled.world.findings
    ]


def prices(fleet: Fleet) -> Document:
    """Where the prices of the machines come from, and as of when; and of which nobody knows one."""
    used = Counter(
        (fleet.offers[fleet.machines.cluster[row].row].name, kind) for row, kind in _machines(fleet)
    )
    classes = [
        _priced(pool, kind, count)
        for (pool, kind), count in sorted(used.items(), key=lambda each: (each[0][0], each[0][1].name))
    ]
    sources: Counter[tuple[str, str]] = Counter()
    for each in classes:
        source = (
            "costPerHour of node classes" + each["source"][len(each["class"]) + len(DECLARED) :]
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
class _Kind:
    """A class of machines in an offer; hashed by what is shown of it."""

    name: str
    micros: int
    source: str
    as_of: str


def _machines(fleet: Fleet) -> Iterator[tuple[int, _Kind]]:
    for row, kind in fleet.machines.kind.items():
        yield row, _kind(kind)


def _kind(kind: MachineType) -> _Kind:
    price = kind.price
    return _Kind(kind.name, kind.rate, price.source if price else "unknown", price.as_of if price else "")


def _priced(pool: str, kind: _Kind, count: int) -> Document:
    return {
        "pool": pool,
        "class": kind.name,
        "machines": count,
        **rate(kind.micros),
        "source": kind.source,
        "asOf": kind.as_of,
        "isDeclared": kind.source.startswith(DECLARED),
    }


def latencies(settled: Settled, names: Iterable[str]) -> list[Document]:
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
        for row in sorted(settled.fleet.counts(demand.name))
    ]


def _nearest(settled: Settled, row: int, target: str) -> Document:
    fleet = settled.fleet
    here = fleet.offers[row].place
    there = [fleet.offers[each].place for each in sorted(fleet.counts(target))]
    known = [
        (rtt.ms, place.name, rtt.source) for place in there if (rtt := fleet.latencies.between(here, place))
    ]
    ms, to, source = min(known, default=(None, None, "unknown"))
    return {
        "from": here.name,
        "to": to,
        "ms": ms,
        "source": source,
        "isEstimate": source.startswith(ESTIMATED),
    }


def cost_document(settled: Settled, by: str, namespace: str = "") -> Document:
    """Every machine is in exactly one row: rows sum to the total. `by`: pool, service or label:KEY.

    With a namespace: what its services pay, and nothing for machines that nobody is on.
    """
    found = _costs(settled, by) if not namespace else _costs_in(settled, by, namespace)
    total, overhead = sum(each[1] for each in found), sum(each[2] for each in found)
    short = [
        each
        for each in in_order(settled.world.demands[name] for name in settled.unplaced)
        if _is_in(each.name, namespace)
    ]
    seats = {each.name: settled.placed(each.name) for each in short}
    return {
        "ask": "cost",
        "by": by,
        "namespace": namespace or None,
        "rows": [_cost_row(total, *each) for each in found],
        "overhead": rate(overhead),
        "total": rate(total),
        "unplaced": [each.name for each in short if not seats[each.name]],
        "partlyPlaced": [
            {"name": each.name, "placed": seats[each.name], "replicas": each.replicas}
            for each in short
            if seats[each.name]
        ],
        "prices": prices(settled.fleet),
    }


def _is_in(service: str, namespace: str) -> bool:
    return not namespace or service.startswith(f"{namespace}/")


def _costs_in(settled: Settled, by: str, namespace: str) -> list[tuple[str, int, int]]:
    names: Counter[str] = Counter()
    for service in {*settled.fleet.seats, *settled.adrift.shares}:
        if _is_in(service, namespace):
            seated = [(pool, micros) for (pool, _, _), micros in placed_costs(settled.fleet, service).items()]
            for pool, micros in (*seated, *settled.adrift.shares.get(service, {}).items()):
                names[_row_name(settled, by, service, pool)] += micros
    return sorted(((name, micros, 0) for name, micros in names.items()), key=lambda each: (-each[1], each[0]))


def _row_name(settled: Settled, by: str, service: str, pool: str) -> str:
    if by in ("pool", "service"):
        return pool if by == "pool" else service
    return _label(settled, service, by.removeprefix("label:"))


def _cost_row(total: int, name: str, micros: int, overhead: int) -> Document:
    share = micros * 1_000_000 // total if total else 0
    return {"name": name, **rate(micros), "shareMillionths": share, "overhead": rate(overhead)}


def _costs(settled: Settled, by: str) -> list[tuple[str, int, int]]:
    """Name, micro-dollars per hour, and how much of that is empty machines; the dearest first."""
    overhead = {**cost_of(settled.fleet).overhead, **settled.adrift.overhead}
    if by == "pool":
        found = [(name, micros, overhead.get(name, 0)) for name, micros in settled.rates.items()]
        return sorted(found, key=lambda each: (-each[1], each[0]))
    names: Counter[str] = Counter()
    for service, micros in settled.costs.items():
        names[_row_name(settled, by, service, "")] += micros
    empty = [(f"(empty nodes in {pool})", micros, micros) for pool, micros in sorted(overhead.items())]
    return [
        *sorted(((name, micros, 0) for name, micros in names.items()), key=lambda each: (-each[1], each[0])),
        *empty,
    ]


def _label(settled: Settled, service: str, key: str) -> str:
    found = settled.world.services.get(service)
    return (found.metadata.labels or {}).get(key, f"(no label {key})") if found else f"(no label {key})"
