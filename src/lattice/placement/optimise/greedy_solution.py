"""A greedy solution of the optimiser's problem: replicas go first where a hint suggests, then to the cheapest
machines with free capacity.

A load is a service, a source is an offer of machines, and a model is a node class at a source.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.placement.optimise.bin_packing import (
    Bins,
    ModelKey,
    ProblemIndex,
    ReplicaCounts,
    count_fitting,
    fill_or_open,
    free_slots,
    load_violations,
    proximity_violations,
)
from lattice.placement.optimise.problem import SOLVER_NO_LIMIT, Load

# Load -> suggested replicas by source and model; replicas go there only if there is free capacity.
PlacementHint = Mapping[str, Mapping[ModelKey, int]]


def greedy_solution(index: ProblemIndex, hint: PlacementHint) -> tuple[ReplicaCounts, Mapping[ModelKey, int]]:
    """Return replicas per load and model, and machines per model.

    Replicas that fit nowhere are missing; a load whose rules cannot be kept is missing entirely.
    """
    state = _State(index)
    counts: ReplicaCounts = {name: {} for name in index.loads}
    for load in _largest_first(index, index.loads.values()):
        for key, count in _trim_hint(index, load, hint.get(load.name, {})):
            state.place(load, counts[load.name], key, count)
    for load in sorted(
        _largest_first(index, index.loads.values()),
        key=lambda load: (bool(load.proximity_rules), len(_sources(index, load))),
    ):
        previous = state.used.copy(), dict(counts[load.name])
        _place_load(state, load, counts[load.name], _proximate_keys(index, load, counts))
        if any(load_violations(index, load, counts[load.name])):
            # The partial placement of the load is undone before the load is dropped.
            state.used, counts[load.name] = previous
            state.drop(load, counts)
    # Dropping a load may break proximity rules of further loads.
    while violation := next(iter(proximity_violations(index, counts)), None):
        state.drop(index.loads[violation[0]], counts)
    return counts, state.used.machines


def _sources(index: ProblemIndex, load: Load) -> set[str]:
    """Sources in which a replica of the load fits."""
    return {source for source, _ in index.keys[load.name]}


def _proximate_keys(index: ProblemIndex, load: Load, counts: ReplicaCounts) -> list[ModelKey]:
    """Models, cheapest first, at the sources that meet the proximity rules of the load: near enough to the
    sources where the target loads of the rules are placed now."""
    sources = _sources(index, load)
    for rule in load.proximity_rules:
        target_sources = {source for (source, _), count in counts.get(rule.target_load, {}).items() if count}
        reachable = rule.reachable_sources
        sources = {
            source for source in sources if source not in reachable or reachable[source] & target_sources
        }
    keys = (key for key in index.keys[load.name] if key[0] in sources)
    return sorted(keys, key=lambda key: (_unit_price(index, load, key), key))


def stay_hint(index: ProblemIndex) -> dict[str, dict[ModelKey, int]]:
    """Return the hint that keeps every replica in place; a replica that cannot stay on its model goes to the
    cheapest model of the same source."""
    hint: dict[str, dict[ModelKey, int]] = {}
    for name, load in index.loads.items():
        for key, count in sorted(load.current_counts.items()):
            keys = [key]
            if key not in index.keys[name]:
                keys = [candidate for candidate in index.keys[name] if candidate[0] == key[0]]
            if keys and count > 0:
                chosen = min(keys, key=lambda key: (_unit_price(index, load, key), key))
                counts = hint.setdefault(name, {})
                counts[chosen] = counts.get(chosen, 0) + count
    return hint


def _unit_price(index: ProblemIndex, load: Load, key: ModelKey) -> float:
    """The price of one machine, divided by the number of replicas of the load that fit on the machine."""
    model = index.models[key]
    return model.price / min(count_fitting(load.needs, model.size), max(1, load.replicas))


def _largest_first(index: ProblemIndex, loads: Iterable[Load]) -> list[Load]:
    """Sort loads by the size of a replica, largest first. The size is the largest share, over the
    resources, that one replica takes of the largest machine."""
    largest = [
        max((model.size[resource] for model in index.models.values()), default=1) or 1
        for resource in range(len(index.problem.resources))
    ]

    def share(load: Load) -> float:
        return max((need / size for need, size in zip(load.needs, largest, strict=True)), default=0)

    return sorted(loads, key=lambda load: (-share(load), load.name))


def _trim_hint(index: ProblemIndex, load: Load, hint: Mapping[ModelKey, int]) -> list[tuple[ModelKey, int]]:
    """The hint without the replicas that must go elsewhere, to meet the rules of the load about regions and
    groups of sources."""
    counts = {key: count for key, count in sorted(hint.items()) if count > 0 and key in index.keys[load.name]}
    regions = {index.sources[source].region for source, _ in counts}
    sources = {source for source, _ in counts}
    elsewhere = max(
        load.min_regions - len(regions),
        sum(1 for group in load.required_source_groups if not group & sources),
        0,
    )
    surplus = sum(counts.values()) - max(0, load.replicas - elsewhere)
    while surplus > 0:
        most = max(counts, key=lambda key: (counts[key], key))
        counts[most] -= 1
        surplus -= 1
    return [(key, count) for key, count in counts.items() if count]


@dataclass
class _Used:
    """Capacity in use. Machines without free capacity for any load are counted, but not listed in `bins`."""

    bins: dict[ModelKey, Bins] = field(default_factory=dict)
    machines: Counter[ModelKey] = field(default_factory=Counter)
    # By source: the number of machines, then per resource the sum of their sizes.
    sources: dict[str, tuple[int, ...]] = field(default_factory=dict)
    # Micro-dollars per hour, by ledger.
    spent: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "_Used":
        return _Used(dict(self.bins), self.machines.copy(), dict(self.sources), self.spent.copy())


class _State:
    """The state of the greedy search: open machines and the limits of sources and ledgers."""

    def __init__(self, index: ProblemIndex) -> None:
        self.index = index
        self.used = _Used()
        # By model, the smallest need of any load that may use the model: a machine with less free capacity is
        # full.
        self.smallest_needs: dict[ModelKey, tuple[int, ...]] = {}
        for name, load in index.loads.items():
            for key in index.keys[name]:
                smallest = self.smallest_needs.get(key, load.needs)
                self.smallest_needs[key] = tuple(map(min, smallest, load.needs))
        self.limits: dict[str, tuple[int, ...]] = {}
        for name, source in index.sources.items():
            resources = [index.resource_limit(source, r) for r in range(len(index.problem.resources))]
            self.limits[name] = (index.machine_limit(source), *resources)

    def _openable(self, key: ModelKey) -> int:
        """The number of further machines of the model that the limits allow."""
        source, model = self.index.sources[key[0]], self.index.models[key]
        used = self.used.sources.get(key[0]) or (0,) * (1 + len(model.size))
        most = SOLVER_NO_LIMIT if model.max_machines is None else model.max_machines - self.used.machines[key]
        for limit, amount, size in zip(self.limits[key[0]], used, (1, *model.size), strict=True):
            if limit < SOLVER_NO_LIMIT and size:
                most = min(most, (limit - amount) // size)
        for ledger in source.ledgers if model.price else ():
            most = min(most, (self.index.ledger_limit(ledger) - self.used.spent[ledger]) // model.price)
        return max(0, most)

    def allowed(self, load: Load, placed: Mapping[ModelKey, int], key: ModelKey) -> int:
        """The number of further replicas of the load on the model that the rules of the load allow."""
        remaining = load.replicas - sum(placed.values())
        for cap in load.caps:
            if key[0] in cap.sources:
                in_cap = sum(count for (source, _), count in placed.items() if source in cap.sources)
                remaining = min(remaining, cap.max_replicas - in_cap)
        for rule in load.spreads:
            counts = [
                sum(count for (source, _), count in placed.items() if source in domain)
                for domain in rule.domains
            ]
            for number, domain in enumerate(rule.domains):
                other_counts = counts[:number] + counts[number + 1 :]
                if key[0] in domain and other_counts:
                    remaining = min(remaining, min(other_counts) + rule.max_skew - counts[number])
        return max(0, remaining)

    def place(self, load: Load, placed: dict[ModelKey, int], key: ModelKey, count: int) -> int:
        """Place up to `count` replicas as limits and rules allow, and return the number placed."""
        size, bins = self.index.models[key].size, self.used.bins.get(key, ())
        count = min(count, self.allowed(load, placed, key))
        free = free_slots(bins, load.needs)
        if count > free:
            count = min(count, free + self._openable(key) * count_fitting(load.needs, size))
        if count <= 0:
            return 0
        self._record_bins(
            key, fill_or_open(bins, size, load.needs, count), sum(machines for _, machines in bins)
        )
        placed[key] = placed.get(key, 0) + count
        return count

    def _record_bins(self, key: ModelKey, bins: Bins, previous_count: int) -> None:
        """Record opened and closed machines, and drop full machines from the list."""
        model = self.index.models[key]
        opened = sum(machines for _, machines in bins) - previous_count
        smallest_needs = self.smallest_needs[key]
        self.used.bins[key] = tuple(
            group
            for group in bins
            if all(have >= need for have, need in zip(group[0], smallest_needs, strict=True))
        )
        self.used.machines[key] += opened
        used = self.used.sources.get(key[0]) or (0,) * (1 + len(model.size))
        self.used.sources[key[0]] = tuple(
            amount + opened * size for amount, size in zip(used, (1, *model.size), strict=True)
        )
        for ledger in self.index.sources[key[0]].ledgers:
            self.used.spent[ledger] += opened * model.price

    def drop(self, load: Load, counts: ReplicaCounts) -> None:
        """Remove the load, and pack the remaining loads of its models again."""
        touched = list(counts[load.name])
        counts[load.name] = {}
        for key in touched:
            bins: Bins = ()
            staying = [self.index.loads[name] for name, placed in counts.items() if placed.get(key)]
            for remaining_load in _largest_first(self.index, staying):
                bins = fill_or_open(
                    bins, self.index.models[key].size, remaining_load.needs, counts[remaining_load.name][key]
                )
            self._record_bins(key, bins, self.used.machines[key])


def _place_load(state: _State, load: Load, placed: dict[ModelKey, int], keys: Sequence[ModelKey]) -> None:
    """Place the replicas that the rules require, then the remaining replicas on the cheapest machines."""
    index = state.index
    for group in load.required_source_groups:
        if not any(source in group for source, _ in placed):
            _place_cheapest(state, load, placed, [key for key in keys if key[0] in group])
    while len(regions := {index.sources[source].region for source, _ in placed}) < load.min_regions:
        in_new_region = [key for key in keys if index.sources[key[0]].region not in regions]
        if not _place_cheapest(state, load, placed, in_new_region):
            break
    while sum(placed.values()) < load.replicas:
        if not _place_cheapest(state, load, placed, keys, load.replicas):
            break


def _place_cheapest(
    state: _State, load: Load, placed: dict[ModelKey, int], keys: Sequence[ModelKey], most: int = 1
) -> int:
    """Place up to `most` replicas on open machines, or else on one new machine of the cheapest model that the
    limits and rules allow; return the number placed."""
    for key in keys:
        if bins := state.used.bins.get(key):
            free = free_slots(bins, load.needs)
            if free and (count := state.place(load, placed, key, min(most, free))):
                return count
    for key in keys:
        fitting = count_fitting(load.needs, state.index.models[key].size)
        if count := state.place(load, placed, key, min(most, fitting)):
            return count
    return 0
