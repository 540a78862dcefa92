"""Workloads that the scheduler has decided to bind and that wait until the victims of their preemption have
left the nodes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from lattice.scheduling.cycle.cycle import CompositeScheduler, ScheduledWorkload
from lattice.scheduling.cycle.scheduling_queue import SchedulingQueue
from lattice.scheduling.plugins.cluster_events import ClusterEvent


@dataclass
class AwaitingVictims:
    """The decided workloads that wait for victims, by path. A gang waits as a whole. Each workload keeps its
    reservation until the victims have left or the reservation is released.

    `CompositeScheduler.evictions` holds the victims.
    """

    scheduler: CompositeScheduler
    queue: SchedulingQueue
    monotonic: Callable[[], float]
    by_path: dict[str, ScheduledWorkload] = field(default_factory=dict)

    def add(self, scheduled: Iterable[ScheduledWorkload]) -> None:
        self.by_path.update((workload.ask.name, workload) for workload in scheduled)

    def awaited_victims(self) -> set[str]:
        """The victims that must leave their nodes before these workloads are bound."""
        victims: set[str] = set()
        for scheduled in self.by_path.values():
            victims.update(scheduled.waits_for)
        return victims

    def expiry_times(self) -> list[float]:
        return [scheduled.reservation.expires_at for scheduled in self.by_path.values()]

    def pop_ready(self) -> list[ScheduledWorkload]:
        """Remove and return the workloads without pending victims; a gang waits for the victims of every
        member."""
        waiting = {
            scheduled.ask.group or scheduled.ask.name
            for scheduled in self.by_path.values()
            if self.scheduler.pending_evictions(scheduled)
        }
        ready = [
            scheduled
            for scheduled in self.by_path.values()
            if (scheduled.ask.group or scheduled.ask.name) not in waiting
        ]
        return [self.by_path.pop(scheduled.ask.name) for scheduled in ready]

    def requeue_expired(self, path: str, now: float) -> None:
        """Requeue a workload whose reservation has expired, if the workload waits for victims."""
        if self.by_path.pop(path, None):
            self.queue.requeue_failed(path, now)
            # The capacity of the expired reservation is free for other workloads.
            self.queue.wake(ClusterEvent.WORKLOAD_GONE, now)

    def release(self, path: str) -> None:
        """Release the reservation of a workload, and wake the workloads that may use the freed capacity."""
        self.scheduler.reservations.release(self.by_path.pop(path).reservation.id)
        # End the scheduling attempt in the queue; otherwise a new workload of the same name would have to wait.
        self.queue.done(path)
        self.queue.wake(ClusterEvent.WORKLOAD_GONE, self.monotonic())

    def release_on(self, node: str) -> list[str]:
        """Release the reservations on a changed node, and return the paths of their workloads: a node that is
        smaller, fuller, cordoned or tainted may no longer fit them."""
        released = [path for path, scheduled in self.by_path.items() if scheduled.node == node]
        for path in released:
            self.release(path)
        return released

    def release_evicted(self) -> list[str]:
        """Release the reservations of workloads that were themselves chosen as victims, and return the paths.
        These workloads are not bound, so there is nothing to evict."""
        evictions = self.scheduler.evictions
        released = [
            path for path, scheduled in self.by_path.items() if path in evictions.victims_on(scheduled.node)
        ]
        for path in released:
            evictions.remove_victim(path)
            self.release(path)
        return released
