"""Bugs in what must go on, what must end, and what must be there once only."""

from dataclasses import replace
from typing import Any

from lattice.agent import session as agent_loop
from lattice.agent import executor as work
from lattice.controllers.scheduler import binding_records as deeds, disruption_budgets as disruptions
from lattice.controllers.nodes import eviction as departures, node_health as nodes, workloads
from lattice.controllers.services import replicas
from lattice.kinds.workload import RETRY_REQUESTED
from lattice.lifecycle import rollout
from lattice.lifecycle import workload as lifecycle, node_health as noderules
from lattice.server.agents import sessions as nodelink
from lattice.sim.planted_bugs.patching import swap


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
            noderules.Allowance(
                frozenset(each.name for each in seen if each.silence >= times.not_ready_after)
            ),
            {},
            {},
            1.0,
        ),
    )
    failover = noderules.failover
    swap(
        nodes,
        "failover",
        lambda disconnect, node, releases, times: failover(
            disconnect, node, releases, replace(times, replace_after=times.not_ready_after)
        ),
    )


def certain_at_once() -> None:
    swap(noderules.NodeTimes, "certain_after", lambda self, stop_after: 1.0)


def contact_too_late() -> None:
    """A node counts its silence from a while after the answer came, not from when it asked."""

    async def heard(self: Any, beat: int) -> None:
        self.unanswered = {number: at for number, at in self.unanswered.items() if number > beat}
        await self.agent.contact(self.clock.monotonic() + 12.0)

    swap(agent_loop.Conversation, "_heard", heard)


def acts_before_it_is_told() -> None:
    """An agent that starts anew goes by what its predecessor was told."""
    made = work.Work.__post_init__

    def hasty(self: Any) -> None:
        made(self)
        self.may_act = True

    swap(work.Work, "__post_init__", hasty)


def older_terms() -> None:
    """Every third order is of the term before, and agents obey it: neither side looks at terms."""
    orders = nodelink.NodeLinks._orders

    def late(self: Any, line: Any) -> Any:
        found = orders(self, line)
        if found is not None and found.number % 3 == 0:
            found.term -= 1
        return found

    def trusting(self: Any, said: Any) -> Any:
        agent_loop.refuse_parting(said)
        return said.welcome

    swap(nodelink.NodeLinks, "_orders", late)
    swap(agent_loop.Conversation, "_obey", lambda self, orders: self.work.take(orders))
    swap(agent_loop.Agent, "_welcomed", trusting)


def forgotten_finalizer() -> None:
    """The record of a workload goes while its node may still run it."""
    swap(deeds, "_held", lambda metadata: metadata)
    swap(workloads, "_metadata", _unheld)


def _unheld(workload: Any) -> Any:
    """As `workloads._metadata`, which holds nobody."""
    if RETRY_REQUESTED not in workload.metadata.annotations:
        return None
    annotations = {
        name: value for name, value in workload.metadata.annotations.items() if name != RETRY_REQUESTED
    }
    return lambda stored: stored | {"annotations": annotations}


def no_rollout() -> None:
    """Replicas of an older revision count as current."""
    sort = rollout._sort

    def blind(wanted: Any, revision: str, live: Any, around: Any) -> Any:
        return sort(wanted, revision, [replace(each, revision=revision) for each in live], around)

    swap(rollout, "_sort", blind)


def no_back_off() -> None:
    swap(lifecycle, "remaining", lambda retry, now, rules=None: 0.0)


def mute() -> None:
    """Who finds no node is not told why."""
    unplaced = deeds.Deeds.unplaced
    swap(
        deeds.Deeds,
        "unplaced",
        lambda self, entry, why, kinds, grounds: unplaced(self, entry, "", kinds, grounds),
    )


def surplus_kept() -> None:
    stopping = replicas.Replicas._stopping
    swap(replicas.Replicas, "_stopping", lambda self, mine, names: stopping(self, mine, names[:0]))


def restless() -> None:
    """Whoever is as he should be is replaced all the same, one after the other."""
    steps = rollout.next_steps

    def restless(wanted: Any, revision: str, found: Any, *rest: Any) -> Any:
        asked, live = steps(wanted, revision, found, *rest), [each for each in found if not each.is_going]
        is_fine = asked.is_none and len(live) == sum(wanted.values()) and all(each.is_ready for each in live)
        return replace(asked, start=tuple(sorted(wanted))[:1]) if is_fine else asked

    swap(replicas, "next_steps", restless)


def room_below_least() -> None:
    swap(disruptions, "may_displace", lambda found: found.available)
