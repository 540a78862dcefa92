"""A quick answer that always comes: each load to the cheapest place that still has room, after honouring a wish where one is given."""

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

PlacementHint = Mapping[str, Mapping[ModelKey, int]]  # load -> where its replicas should go, if there is room


def greedy_solution(world: ProblemIndex, wish: PlacementHint) -> tuple[ReplicaCounts, Mapping[ModelKey, int]]:
    """Replicas per load and place, and machines per place. What does not fit is missing; a load whose rules cannot hold, whole."""
    state = _State(world)
    counts: ReplicaCounts = {name: {} for name in world.loads}
    for load in _largest_first(world, world.loads.values()):
        for key, count in _trim_hint(world, load, wish.get(load.name, {})):
            state.place(load, counts[load.name], key, count)
    for load in sorted(
        _largest_first(world, world.loads.values()),
        key=lambda load: (bool(load.proximity_rules), len(_sources(world, load))),
    ):
        before = state.used.copy(), dict(counts[load.name])
        _place_load(state, load, counts[load.name], _proximate_keys(world, load, counts))
        if any(load_violations(world, load, counts[load.name])):
            state.used, counts[load.name] = before
            state.drop(load, counts)
    while far := next(iter(proximity_violations(world, counts)), None):
        state.drop(world.loads[far[0]], counts)
    return counts, state.used.machines


def _sources(world: ProblemIndex, load: Load) -> set[str]:
    return {source for source, _ in world.keys[load.name]}


def _proximate_keys(world: ProblemIndex, load: Load, counts: ReplicaCounts) -> list[ModelKey]:
    """Where it may go by where those are that it has to be near; cheapest first."""
    sources = _sources(world, load)
    for near in load.proximity_rules:
        others = {source for (source, _), count in counts.get(near.target_load, {}).items() if count}
        sources = {
            source
            for source in sources
            if source not in near.reachable_sources or near.reachable_sources[source] & others
        }
    keys = (key for key in world.keys[load.name] if key[0] in sources)
    return sorted(keys, key=lambda key: (_unit_price(world, load, key), key))


def stay_hint(world: ProblemIndex) -> dict[str, dict[ModelKey, int]]:
    """Everything where it is now; what cannot stay on such machines, on those of the source that are cheapest for it."""
    wish: dict[str, dict[ModelKey, int]] = {}
    for name, load in world.loads.items():
        for key, count in sorted(load.current_counts.items()):
            here = (
                [key] if key in world.keys[name] else [each for each in world.keys[name] if each[0] == key[0]]
            )
            if here and count > 0:
                chosen = min(here, key=lambda each: (_unit_price(world, load, each), each))
                wanted = wish.setdefault(name, {})
                wanted[chosen] = wanted.get(chosen, 0) + count
    return wish


def _unit_price(world: ProblemIndex, load: Load, key: ModelKey) -> float:
    model = world.models[key]
    return model.price / min(count_fitting(load.needs, model.size), max(1, load.replicas))


def _largest_first(world: ProblemIndex, loads: Iterable[Load]) -> list[Load]:
    largest = [
        max((model.size[r] for model in world.models.values()), default=1) or 1
        for r in range(len(world.problem.resources))
    ]

    def part(load: Load) -> float:
        return max((need / whole for need, whole in zip(load.needs, largest, strict=True)), default=0)

    return sorted(loads, key=lambda load: (-part(load), load.name))


def _trim_hint(world: ProblemIndex, load: Load, wish: Mapping[ModelKey, int]) -> list[tuple[ModelKey, int]]:
    """The wish, less as many replicas as the rules still want elsewhere."""
    wanted = {key: count for key, count in sorted(wish.items()) if count > 0 and key in world.keys[load.name]}
    regions = {world.sources[source].region for source, _ in wanted}
    sources = {source for source, _ in wanted}
    elsewhere = max(
        load.min_regions - len(regions),
        sum(1 for group in load.required_source_groups if not group & sources),
        0,
    )
    surplus = sum(wanted.values()) - max(0, load.replicas - elsewhere)
    while surplus > 0:
        most = max(wanted, key=lambda key: (wanted[key], key))
        wanted[most] -= 1
        surplus -= 1
    return [(key, count) for key, count in wanted.items() if count]


@dataclass
class _Used:
    """What is taken so far. Machines that nobody fits on any more are counted, but not looked at again."""

    bins: dict[ModelKey, Bins] = field(default_factory=dict)
    machines: Counter[ModelKey] = field(default_factory=Counter)
    sources: dict[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # machines, then each resource over their sizes
    spent: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "_Used":
        return _Used(dict(self.bins), self.machines.copy(), dict(self.sources), self.spent.copy())


class _State:
    def __init__(self, world: ProblemIndex) -> None:
        self.world = world
        self.used = _Used()
        self.smallest_needs = _smallest_needs(world)
        self.limits = {
            name: (
                world.machine_limit(source),
                *(world.resource_limit(source, r) for r in range(len(world.problem.resources))),
            )
            for name, source in world.sources.items()
        }

    def openable(self, key: ModelKey) -> int:
        """Machines that every limit still allows."""
        source, model = self.world.sources[key[0]], self.world.models[key]
        used = self.used.sources.get(key[0]) or (0,) * (1 + len(model.size))
        most = SOLVER_NO_LIMIT if model.max_machines is None else model.max_machines - self.used.machines[key]
        for limit, taken, each in zip(self.limits[key[0]], used, (1, *model.size), strict=True):
            if limit < SOLVER_NO_LIMIT and each:
                most = min(most, (limit - taken) // each)
        for ledger in source.ledgers if model.price else ():
            most = min(most, (self.world.ledger_limit(ledger) - self.used.spent[ledger]) // model.price)
        return max(0, most)

    def allowed(self, load: Load, placed: Mapping[ModelKey, int], key: ModelKey) -> int:
        """Replicas that the load's own rules still let go there."""
        left = load.replicas - sum(placed.values())
        for cap in load.caps:
            if key[0] in cap.sources:
                left = min(
                    left,
                    cap.max_replicas
                    - sum(count for (source, _), count in placed.items() if source in cap.sources),
                )
        return max(0, left)

    def place(self, load: Load, placed: dict[ModelKey, int], key: ModelKey, count: int) -> int:
        """As many of them as limits and rules allow; returns how many."""
        size, bins = self.world.models[key].size, self.used.bins.get(key, ())
        count = min(count, self.allowed(load, placed, key))
        inside = free_slots(bins, load.needs)
        if count > inside:
            count = min(count, inside + self.openable(key) * count_fitting(load.needs, size))
        if count <= 0:
            return 0
        self._record_bins(
            key, fill_or_open(bins, size, load.needs, count), sum(machines for _, machines in bins)
        )
        placed[key] = placed.get(key, 0) + count
        return count

    def _record_bins(self, key: ModelKey, bins: Bins, before: int) -> None:
        """Books the machines that were opened (or closed), and forgets the full ones."""
        model = self.world.models[key]
        opened = sum(machines for _, machines in bins) - before
        least = self.smallest_needs[key]
        self.used.bins[key] = tuple(
            group for group in bins if all(have >= need for have, need in zip(group[0], least, strict=True))
        )
        self.used.machines[key] += opened
        used = self.used.sources.get(key[0]) or (0,) * (1 + len(model.size))
        self.used.sources[key[0]] = tuple(
            taken + opened * each for taken, each in zip(used, (1, *model.size), strict=True)
        )
        for ledger in self.world.sources[key[0]].ledgers:
            self.used.spent[ledger] += opened * model.price

    def drop(self, load: Load, counts: ReplicaCounts) -> None:
        """Takes a load out again: the few others of its places are packed anew."""
        touched = list(counts[load.name])
        counts[load.name] = {}
        for key in touched:
            bins: Bins = ()
            for other in _largest_first(
                self.world, [self.world.loads[name] for name, placed in counts.items() if placed.get(key)]
            ):
                bins = fill_or_open(bins, self.world.models[key].size, other.needs, counts[other.name][key])
            self._record_bins(key, bins, self.used.machines[key])


def _smallest_needs(world: ProblemIndex) -> dict[ModelKey, tuple[int, ...]]:
    """The least that any load asks for, where it might go: what a machine must have left to be of use."""
    least: dict[ModelKey, tuple[int, ...]] = {}
    for name, load in world.loads.items():
        for key in world.keys[name]:
            least[key] = tuple(map(min, least.get(key, load.needs), load.needs))
    return least


def _place_load(state: _State, load: Load, placed: dict[ModelKey, int], keys: Sequence[ModelKey]) -> None:
    """First what the rules demand, then the cheapest for the rest."""
    world = state.world
    for group in load.required_source_groups:
        if not any(source in group for source, _ in placed):
            _place_cheapest(state, load, placed, [key for key in keys if key[0] in group])
    while len(regions := {world.sources[source].region for source, _ in placed}) < load.min_regions:
        if not _place_cheapest(
            state, load, placed, [key for key in keys if world.sources[key[0]].region not in regions]
        ):
            break
    while sum(placed.values()) < load.replicas:
        if not _place_cheapest(state, load, placed, keys, load.replicas):
            break


def _place_cheapest(
    state: _State, load: Load, placed: dict[ModelKey, int], keys: Sequence[ModelKey], most: int = 1
) -> int:
    """One step: what fits on open machines, or else one more machine of the first of these keys, the cheapest, that may open one."""
    opened = [key for key in keys if state.used.bins.get(key)]
    for key in opened:
        if (free := free_slots(state.used.bins[key], load.needs)) and (
            count := state.place(load, placed, key, min(most, free))
        ):
            return count
    for key in keys:
        if count := state.place(
            load, placed, key, min(most, count_fitting(load.needs, state.world.models[key].size))
        ):
            return count
    return 0
