"""What is behind a service that waits for others: does somebody need what nobody declares, and do they wait for one another?"""

from collections.abc import Iterator, Mapping

from lattice.kinds.service import LatticeService
from lattice.placement.model.demand import Demand, latency_targets
from lattice.placement.model.fleet import Fleet

Services = Mapping[str, LatticeService]


def behind(demand: Demand, fleet: Fleet, services: Services) -> Iterator[str]:
    """Every dependency that is not declared, however far, and the circle that the service is in: sentences."""
    needs = _needs(demand, fleet, services)
    for service, targets in needs.items():
        for target in targets:
            if target not in services:
                of = "" if service == demand.name else f", which {_short(service, demand)} needs,"
                yield f"{_short(target, demand)}{of} is not defined"
    circle = _circle(demand.name, needs)
    if circle:
        *first, last = (_short(each, demand) for each in circle)
        yield f"{', '.join(first)} and {last} wait for one another: they are placed together or not at all"


def _needs(demand: Demand, fleet: Fleet, services: Services) -> dict[str, list[str]]:
    """Of it, and of everything without a place that it waits for: what those wait for, nearest first."""
    found: dict[str, list[str]] = {}
    waiting = [demand.name]
    while waiting:
        name = waiting.pop(0)
        if name in found or name not in services:
            continue
        targets = latency_targets(services[name]).values()
        found[name] = [each for each in dict.fromkeys(targets) if each != name and not fleet.seats.get(each)]
        waiting += found[name]
    return found


def _circle(start: str, needs: Mapping[str, list[str]]) -> list[str]:
    """The shortest way from a service back to it; nothing: there is none."""
    ways = [[start]]
    seen = {start}
    while ways:
        way = ways.pop(0)
        for target in needs.get(way[-1], ()):
            if target == start:
                return way
            if target not in seen:
                seen.add(target)
                ways.append([*way, target])
    return []


def _short(name: str, demand: Demand) -> str:
    """Without the namespace that they share."""
    return name.removeprefix(f"{demand.name.partition('/')[0]}/")
