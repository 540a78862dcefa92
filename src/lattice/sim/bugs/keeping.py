"""Bugs in what must go on, what must end, and what must be there once only."""

from dataclasses import replace
from typing import Any

from lattice.agent import loop as agent_loop
from lattice.agent import work
from lattice.controllers import departures, disruptions, nodes, replicas
from lattice.placement import rollout
from lattice.scheduling import noderules
from lattice.sim.bugs.swap import swap


def stop_before_switch() -> None:
    """Old replicas go at once; new ones come when they come."""
    swap(rollout, "_spare", lambda unwanted, total, live: tuple(each.name for each in unwanted))


def drain_below_least() -> None:
    drain = noderules.drain
    swap(departures, "drain", lambda residents, services, most=1: drain(residents, {}, most))


def started_twice() -> None:
    """An agent that starts anew does not take over what runs, and starts it once more."""

    async def adopt(self: Any) -> None:
        return None

    swap(work.Work, "adopt", adopt)


def moved_too_soon() -> None:
    failover = noderules.failover

    def hasty(disconnect: Any, node: Any, releases: Any, times: Any) -> Any:
        if node.silence >= times.not_ready_after:
            return noderules.Failover(True, "it is silent")
        return failover(disconnect, node, releases, times)

    swap(nodes, "failover", hasty)


def certain_too_soon() -> None:
    """Strict copies are taken to be dead at the moment at which their node begins to count."""
    swap(noderules.NodeTimes, "certain_after", lambda self, stop_after: 1.0)
    swap(
        nodes,
        "release",
        lambda seen, before, now, times: noderules.Releases(
            noderules.Allowance(frozenset(each.name for each in seen if each.silence >= times.not_ready_after)), {}, {}, 1.0
        ),
    )
    failover = noderules.failover
    swap(
        nodes,
        "failover",
        lambda disconnect, node, releases, times: failover(disconnect, node, releases, replace(times, replace_after=times.not_ready_after)),
    )


def certain_at_once() -> None:
    swap(noderules.NodeTimes, "certain_after", lambda self, stop_after: 1.0)


def contact_too_late() -> None:
    """A node counts its silence from a while after the answer came, not from when it asked."""

    async def heard(self: Any, beat: int) -> None:
        self.unanswered = {number: at for number, at in self.unanswered.items() if number > beat}
        await self.agent.contact(self.clock.monotonic() + 12.0)

    swap(agent_loop.Conversation, "_heard", heard)


def surplus_kept() -> None:
    stopping = replicas.Replicas._stopping
    swap(replicas.Replicas, "_stopping", lambda self, mine, names: stopping(self, mine, names[:0]))


def restless() -> None:
    """Whoever is as he should be is replaced all the same, one after the other."""
    steps = rollout.next_steps

    def restless(wanted: Any, revision: str, found: Any, least: int = 0) -> Any:
        asked, live = steps(wanted, revision, found, least), [each for each in found if not each.is_going]
        is_fine = asked.is_none and len(live) == sum(wanted.values()) and all(each.is_ready for each in live)
        return replace(asked, start=tuple(sorted(wanted))[:1]) if is_fine else asked

    swap(replicas, "next_steps", restless)


def room_below_least() -> None:
    swap(disruptions, "may_displace", lambda found: found.available)
