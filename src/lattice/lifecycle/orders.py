"""What is the node of a workload to do about it? Told from what is stored and from nothing else: stored first, ordered then."""

from lattice.kinds.order import Wanted
from lattice.kinds.workload import LatticeWorkload
from lattice.lifecycle.workload import UNDER_WAY, Action

# Nothing is ordered: it was only just bound, or has to go.
NOTHING = frozenset(
    {"", Action.ASSIGN, Action.DELETE, Action.FINALIZE_DELETE, Action.RESCHEDULE, Action.RELEASE}
)


def wanted(workload: LatticeWorkload) -> Wanted | None:
    """None: it is not to be there. Otherwise what its node is told; one that failed and waits is told to stay stopped, and keeps its log.

    A new revision is ordered as its own first run, the number that the next look stores: whoever sees it first, it starts once.
    """
    spec, status = workload.spec, workload.status
    if status.binding is None or status.last_action in NOTHING:
        return None
    revision = spec.runs
    run = (status.retry.run or 0) if status.retry else 0
    if status.last_action not in UNDER_WAY:
        return Wanted("Stopped", revision, run)
    if status.retry is not None and status.retry.revision == revision:
        return Wanted("Running", revision, run)
    is_to_run = spec.desired_state == "Running" and not workload.metadata.deletion_timestamp
    return Wanted("Running" if is_to_run else "Stopped", revision, run + 1)
