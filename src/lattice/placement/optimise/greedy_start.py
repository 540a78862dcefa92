"""A quick answer that always comes: each load to the cheapest place that still has room, after honouring a wish where one is given."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lattice.placement.optimise.bin_packing import (
    Bins,
    Counts,
    Index,
    Key,
    broken_rules,
    fits,
    put,
    room,
    too_far,
)
from lattice.placement.optimise.problem import UNLIMITED, Load

Wish = Mapping[str, Mapping[Key, int]]  # load -> where its replicas should go, if there is room


def guess(world: Index, wish: Wish) -> tuple[Counts, Mapping[Key, int]]:
    """Replicas per load and place, and machines per place. What does not fit is missing; a load whose rules cannot hold, whole."""
    state = _State(world)
    counts: Counts = {name: {} for name in world.loads}
    for load in _largest_first(world, world.loads.values()):
        for key, count in _trimmed(world, load, wish.get(load.name, {})):
            state.place(load, counts[load.name], key, count)
    for load in sorted(
        _largest_first(world, world.loads.values()),
        key=lambda load: (bool(load.near), len(_sources(world, load))),
    ):
        before = state.used.copy(), dict(counts[load.name])
        _complete(state, load, counts[load.name], _near_enough(world, load, counts))
        if any(broken_rules(world, load, counts[load.name])):
            state.used, counts[load.name] = before
            state.drop(load, counts)
    while far := next(iter(too_far(world, counts)), None):
        state.drop(world.loads[far[0]], counts)
    return counts, state.used.machines


def _sources(world: Index, load: Load) -> set[str]:
    return {source for source, _ in world.keys[load.name]}


def _near_enough(world: Index, load: Load, counts: Counts) -> list[Key]:
    """Where it may go by where those are that it has to be near; cheapest first."""
    sources = _sources(world, load)
    for near in load.near:
        others = {source for (source, _), count in counts.get(near.load, {}).items() if count}
        sources = {source for source in sources if source not in near.within or near.within[source] & others}
    keys = (key for key in world.keys[load.name] if key[0] in sources)
    return sorted(keys, key=lambda key: (_unit_price(world, load, key), key))


def wish_to_stay(world: Index) -> dict[str, dict[Key, int]]:
    """Everything where it is now; what cannot stay on such machines, on those of the source that are cheapest for it."""
    wish: dict[str, dict[Key, int]] = {}
    for name, load in world.loads.items():
        for key, count in sorted(load.current.items()):
            here = (
                [key] if key in world.keys[name] else [each for each in world.keys[name] if each[0] == key[0]]
            )
            if here and count > 0:
                chosen = min(here, key=lambda each: (_unit_price(world, load, each), each))
                wanted = wish.setdefault(name, {})
                wanted[chosen] = wanted.get(chosen, 0) + count
    return wish


def _unit_price(world: Index, load: Load, key: Key) -> float:
    model = world.models[key]
    return model.price / min(fits(load.needs, model.size), max(1, load.replicas))


def _largest_first(world: Index, loads: Iterable[Load]) -> list[Load]:
    largest = [
        max((model.size[r] for model in world.models.values()), default=1) or 1
        for r in range(len(world.program.resources))
    ]

    def part(load: Load) -> float:
        return max((need / whole for need, whole in zip(load.needs, largest, strict=True)), default=0)

    return sorted(loads, key=lambda load: (-part(load), load.name))


def _trimmed(world: Index, load: Load, wish: Mapping[Key, int]) -> list[tuple[Key, int]]:
    """The wish, less as many replicas as the rules still want elsewhere."""
    wanted = {key: count for key, count in sorted(wish.items()) if count > 0 and key in world.keys[load.name]}
    regions = {world.sources[source].region for source, _ in wanted}
    sources = {source for source, _ in wanted}
    elsewhere = max(
        load.min_regions - len(regions), sum(1 for group in load.groups if not group & sources), 0
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

    bins: dict[Key, Bins] = field(default_factory=dict)
    machines: Counter[Key] = field(default_factory=Counter)
    sources: dict[str, tuple[int, ...]] = field(
        default_factory=dict
    )  # machines, then each resource over their sizes
    spent: Counter[str] = field(default_factory=Counter)

    def copy(self) -> "_Used":
        return _Used(dict(self.bins), self.machines.copy(), dict(self.sources), self.spent.copy())


class _State:
    def __init__(self, world: Index) -> None:
        self.world = world
        self.used = _Used()
        self.least = _least_needs(world)
        self.limits = {
            name: (
                world.machine_limit(source),
                *(world.resource_limit(source, r) for r in range(len(world.program.resources))),
            )
            for name, source in world.sources.items()
        }

    def openable(self, key: Key) -> int:
        """Machines that every limit still allows."""
        source, model = self.world.sources[key[0]], self.world.models[key]
        used = self.used.sources.get(key[0]) or (0,) * (1 + len(model.size))
        most = UNLIMITED if model.most is None else model.most - self.used.machines[key]
        for limit, taken, each in zip(self.limits[key[0]], used, (1, *model.size), strict=True):
            if limit < UNLIMITED and each:
                most = min(most, (limit - taken) // each)
        for ledger in source.ledgers if model.price else ():
            most = min(most, (self.world.ledger_limit(ledger) - self.used.spent[ledger]) // model.price)
        return max(0, most)

    def allowed(self, load: Load, placed: Mapping[Key, int], key: Key) -> int:
        """Replicas that the load's own rules still let go there."""
        left = load.replicas - sum(placed.values())
        for cap in load.caps:
            if key[0] in cap.sources:
                left = min(
                    left,
                    cap.replicas
                    - sum(count for (source, _), count in placed.items() if source in cap.sources),
                )
        return max(0, left)

    def place(self, load: Load, placed: dict[Key, int], key: Key, count: int) -> int:
        """As many of them as limits and rules allow; returns how many."""
        size, bins = self.world.models[key].size, self.used.bins.get(key, ())
        count = min(count, self.allowed(load, placed, key))
        inside = room(bins, load.needs)
        if count > inside:
            count = min(count, inside + self.openable(key) * fits(load.needs, size))
        if count <= 0:
            return 0
        self._hold(key, put(bins, size, load.needs, count), sum(machines for _, machines in bins))
        placed[key] = placed.get(key, 0) + count
        return count

    def _hold(self, key: Key, bins: Bins, before: int) -> None:
        """Books the machines that were opened (or closed), and forgets the full ones."""
        model = self.world.models[key]
        opened = sum(machines for _, machines in bins) - before
        least = self.least[key]
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

    def drop(self, load: Load, counts: Counts) -> None:
        """Takes a load out again: the few others of its places are packed anew."""
        touched = list(counts[load.name])
        counts[load.name] = {}
        for key in touched:
            bins: Bins = ()
            for other in _largest_first(
                self.world, [self.world.loads[name] for name, placed in counts.items() if placed.get(key)]
            ):
                bins = put(bins, self.world.models[key].size, other.needs, counts[other.name][key])
            self._hold(key, bins, self.used.machines[key])


def _least_needs(world: Index) -> dict[Key, tuple[int, ...]]:
    """The least that any load asks for, where it might go: what a machine must have left to be of use."""
    least: dict[Key, tuple[int, ...]] = {}
    for name, load in world.loads.items():
        for key in world.keys[name]:
            least[key] = tuple(map(min, least.get(key, load.needs), load.needs))
    return least


def _complete(state: _State, load: Load, placed: dict[Key, int], keys: Sequence[Key]) -> None:
    """First what the rules demand, then the cheapest for the rest."""
    world = state.world
    for group in load.groups:
        if not any(source in group for source, _ in placed):
            _cheapest(state, load, placed, [key for key in keys if key[0] in group])
    while len(regions := {world.sources[source].region for source, _ in placed}) < load.min_regions:
        if not _cheapest(
            state, load, placed, [key for key in keys if world.sources[key[0]].region not in regions]
        ):
            break
    while sum(placed.values()) < load.replicas:
        if not _cheapest(state, load, placed, keys, load.replicas):
            break


def _cheapest(state: _State, load: Load, placed: dict[Key, int], keys: Sequence[Key], most: int = 1) -> int:
    """One step: what fits on open machines, or else one more machine of the first of these keys, the cheapest, that may open one."""
    opened = [key for key in keys if state.used.bins.get(key)]
    for key in opened:
        if (free := room(state.used.bins[key], load.needs)) and (
            count := state.place(load, placed, key, min(most, free))
        ):
            return count
    for key in keys:
        if count := state.place(load, placed, key, min(most, fits(load.needs, state.world.models[key].size))):
            return count
    return 0
