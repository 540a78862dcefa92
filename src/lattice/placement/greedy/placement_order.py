"""The order in which plan, controller and fit place services: dependencies and targets of affinity before the
services that need or prefer them near, then by priority, then the largest replica first. Names decide only
between services that are equal in everything else."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from lattice.placement.model.demand import Demand

# Memory that weighs as much as one core in the size of a replica.
BYTES_PER_CORE = 4 << 30
# Rounds of `_colours` in which services adopt the colours of their neighbours; a chain of dependencies that is
# equal for longer than this is told apart by names.
MAX_COLOUR_ROUNDS = 8

# Milli-GPUs and the size of a replica, negative so that large replicas come first; then the colour, the name.
SizeKey = tuple[int, int, str, str]


def placement_order(demands: Mapping[str, Demand]) -> Iterator[list[Demand]]:
    """Yield groups of services in the order of placement; a group is placed together.

    Services that latency limits or required affinity tie to each other, and the services of a gang, are one
    group, with the services that only this group calls: these find room beside the dependencies of the group.
    A group follows the groups that it depends on, and the groups that its services prefer to be near. Groups
    that depend on each other in a cycle follow each other directly. A group has the highest priority of its
    members and of all groups that depend on it: a caller pulls its dependencies forward.
    """
    keys = _size_keys(demands)
    callees = {
        name: [target for target in demand.calls if target in demands and target != name]
        for name, demand in demands.items()
    }
    tied = tied_dependencies(demands)
    root = _group_roots(demands, callees, tied)
    # What each service follows: the services that it calls, must be near to, or prefers to be near to.
    followed = {
        name: list(dict.fromkeys([*callees[name], *tied[name], *_preferred_targets(demand, demands)]))
        for name, demand in demands.items()
    }
    members: dict[str, list[str]] = {}
    for name in demands:
        members.setdefault(root[name], []).append(name)
    edges: dict[str, set[str]] = {group: set() for group in members}
    for name, targets in followed.items():
        edges[root[name]].update(root[target] for target in targets if root[target] != root[name])
    components = _strong_components(edges)
    component_of = {group: number for number, groups in enumerate(components) for group in groups}
    priority, best_key = [], []
    for groups in components:
        names = [name for group in groups for name in members[group]]
        priority.append(max(demands[name].priority for name in names))
        best_key.append(min(keys[name] for name in names))
    # Dependencies by component, and the number of dependencies that are not placed yet.
    dependencies = [
        {component_of[target] for group in groups for target in edges[group]} - {number}
        for number, groups in enumerate(components)
    ]
    dependants: list[list[int]] = [[] for _ in components]
    # `_strong_components` lists dependencies first, so callers come first in the reverse order.
    for number in reversed(range(len(components))):
        for dependency in dependencies[number]:
            priority[dependency] = max(priority[dependency], priority[number])
            dependants[dependency].append(number)
    waiting = [len(targets) for targets in dependencies]
    ready = [
        (-priority[number], best_key[number], number)
        for number in range(len(components))
        if not waiting[number]
    ]
    heapify(ready)
    while ready:
        _, _, number = heappop(ready)
        groups = sorted(
            components[number],
            key=lambda group: min((-demands[name].priority, keys[name]) for name in members[group]),
        )
        for group in groups:
            yield _dependencies_first([demands[name] for name in members[group]], followed, keys)
        for dependant in dependants[number]:
            waiting[dependant] -= 1
            if not waiting[dependant]:
                heappush(ready, (-priority[dependant], best_key[dependant], dependant))


def ordered_demands(demands: Iterable[Demand]) -> list[Demand]:
    """Return the demands in the order of placement."""
    groups = placement_order({demand.name: demand for demand in demands})
    return [demand for group in groups for demand in group]


def tied_dependencies(demands: Mapping[str, Demand]) -> dict[str, list[str]]:
    """Return, by service, the services that it must be placed near to: the targets of its latency limits and
    of its required affinity terms."""
    tied: dict[str, list[str]] = {}
    for name, demand in demands.items():
        targets = [target for _, target in demand.latency_to]
        for term in demand.near_terms:
            # The service may be near its own replicas, and waits for no other target then.
            if name not in term.targets:
                targets += term.targets
        tied[name] = [target for target in dict.fromkeys(targets) if target in demands and target != name]
    return tied


def _preferred_targets(demand: Demand, demands: Mapping[str, Demand]) -> list[str]:
    return [
        target
        for term in demand.preferred_terms
        if not term.is_anti
        for target in term.targets
        if target in demands and target != demand.name
    ]


def _group_roots(
    demands: Mapping[str, Demand], callees: Mapping[str, Sequence[str]], tied: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Union-find: services with a latency limit or required affinity between them and the services of a gang
    get the same root, and so does a service without a limit that only such a group calls."""
    root = {name: name for name in demands}

    def root_of(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    first_member: dict[str, str] = {}
    for name, demand in demands.items():
        for target in tied[name]:
            root[root_of(name)] = root_of(target)
        if demand.gang:
            root[root_of(name)] = root_of(first_member.setdefault(demand.gang, name))
    sizes = Counter(root_of(name) for name in demands)
    callers: dict[str, list[str]] = {}
    for name, targets in callees.items():
        for target in targets:
            callers.setdefault(target, []).append(name)
    # A service that joins a group may let its own dependencies join.
    candidates = [name for name in callers if sizes[root_of(name)] == 1]
    while candidates:
        name = candidates.pop()
        groups = {root_of(caller) for caller in callers[name]}
        if len(groups) == 1 and root_of(name) not in groups and sizes[group := groups.pop()] > 1:
            root[root_of(name)] = group
            candidates += [target for target in callees[name] if sizes[root_of(target)] == 1]
    return {name: root_of(name) for name in demands}


def _size_keys(demands: Mapping[str, Demand]) -> dict[str, SizeKey]:
    colours = _colours(demands)
    keys = {}
    for name, demand in demands.items():
        needs = demand.needs
        size = max(needs.get("cpu", 0) * BYTES_PER_CORE // 1000, needs.get("memory", 0))
        keys[name] = (-needs.get("gpu", 0), -size, colours[name], name)
    return keys


def _colours(demands: Mapping[str, Demand]) -> dict[str, str]:
    """A digest per service of everything but names: of its own demand, then of its neighbours, and so on until
    no further services differ."""
    colours = {name: _demand_digest(demand) for name, demand in demands.items()}
    gangs: dict[str, list[str]] = {}
    for name, demand in demands.items():
        if demand.gang:
            gangs.setdefault(demand.gang, []).append(name)
    linked = {
        name: demand
        for name, demand in demands.items()
        if demand.terms or demand.gang or any(neighbour in demands for neighbour in demand.neighbours)
    }
    distinct = len(set(colours.values()))
    for _ in range(MAX_COLOUR_ROUNDS if linked else 0):
        refined = {}
        gang_colours = {
            gang: _digest(sorted(colours[member] for member in members)) for gang, members in gangs.items()
        }
        for name, demand in linked.items():
            bound = demand.bound_neighbours
            limits = _latency_limits(demand)
            called = sorted(
                (colours.get(target, ""), target in bound, *limits.get(target, ())) for target in demand.calls
            )
            callers = sorted((colours.get(caller, ""), is_bound) for caller, is_bound in demand.callers)
            terms = sorted(
                (term.properties, sorted(colours.get(target, "") for target in term.targets))
                for term in demand.terms
            )
            gang = gang_colours.get(demand.gang, "")
            refined[name] = _digest((colours[name], called, callers, terms, gang))
        colours |= refined
        previous, distinct = distinct, len(set(colours.values()))
        if distinct == previous:
            break
    return colours


def _latency_limits(demand: Demand) -> dict[str, list[int]]:
    """By called service: the latency limits in milliseconds, smallest first."""
    targets, limits = dict(demand.latency_to), dict[str, list[int]]()
    for requirement in sorted(demand.latency, key=lambda requirement: requirement.amount):
        limits.setdefault(targets[requirement.value], []).append(requirement.amount)
    return limits


def _demand_digest(demand: Demand) -> str:
    """A digest of everything that placement reads, except for names of services and policies: services that
    may be placed differently have different digests, whatever their names are. Offers are named by what the
    service states: required regions, reserves that it may use, and machines that did not accept it."""
    requirements = sorted(
        (
            requirement.kind,
            "" if requirement.kind == "latency" or requirement.term else requirement.value,
            requirement.amount,
            str(requirement.label),
        )
        for requirement in demand.requirements
    )
    properties = (
        requirements,
        demand.replicas,
        demand.requests,
        demand.gpu_model,
        demand.rules.hash,
        demand.preferences,
        demand.soft_spread,
        len(demand.usable_reserves),
        demand.tolerations,
        demand.node_selector,
        demand.max_per_node,
        demand.priority,
        demand.max_replicas,
        sorted((*term.properties, demand.name in term.targets) for term in demand.terms),
        bool(demand.gang),
        demand.min_member,
        bool(demand.rule_conflict),
        sorted(demand.ignored_limits),
        *sorted(demand.usable_reserves),
        *sorted(demand.refused_types),
        *sorted(demand.runtimes ^ {"container"}),
    )
    return _digest(properties)


def _digest(value: Hashable | Sequence[object]) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _strong_components(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Tarjan's strongly connected components, without recursion; a component follows the components that its
    edges lead to."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    on_stack: set[str] = set()
    stack: list[str] = []
    components: list[list[str]] = []
    for start in edges:
        if start in index:
            continue
        path = [(start, iter(edges[start]))]
        index[start] = lowest[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while path:
            node, targets = path[-1]
            target = next(targets, None)
            if target is None:
                path.pop()
                if path:
                    lowest[path[-1][0]] = min(lowest[path[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    component = [stack.pop()]
                    while component[-1] != node:
                        component.append(stack.pop())
                    components.append(component)
                    on_stack.difference_update(component)
            elif target not in index:
                index[target] = lowest[target] = len(index)
                stack.append(target)
                on_stack.add(target)
                path.append((target, iter(edges[target])))
            elif target in on_stack:
                lowest[node] = min(lowest[node], index[target])
    return components


def _dependencies_first(
    group: Sequence[Demand], callees: Mapping[str, Sequence[str]], keys: Mapping[str, SizeKey]
) -> list[Demand]:
    """Order the members of one group; a cycle is cut at the member that the order reaches first."""
    by_name = {demand.name: demand for demand in group}
    ordered: list[Demand] = []
    visited: set[str] = set()

    def targets_of(name: str) -> Iterator[str]:
        return iter(sorted((target for target in callees[name] if target in by_name), key=keys.__getitem__))

    # Without recursion, because a chain of dependencies may be longer than the stack.
    for demand in sorted(group, key=lambda demand: (-demand.priority, keys[demand.name])):
        path = [] if demand.name in visited else [(demand.name, targets_of(demand.name))]
        visited.add(demand.name)
        while path:
            name, targets = path[-1]
            target = next((target for target in targets if target not in visited), None)
            if target is None:
                path.pop()
                ordered.append(by_name[name])
            else:
                visited.add(target)
                path.append((target, targets_of(target)))
    return ordered
