"""The score of an instance for the kernel's out-of-memory killer, by its quality-of-service class."""

from contextlib import suppress
from pathlib import Path

from lattice.agent.host.runtime_protocol import RunSpec
from lattice.kinds.qos import Qos, oom_score_adj

# Bit of the capability CAP_SYS_RESOURCE, with which a process may lower its score.
SYS_RESOURCE_BIT = 24


def instance_oom_score(spec: RunSpec, proc: Path = Path("/proc")) -> int | None:
    """The score that this agent may set for the instance; None if its class is not known.

    Without CAP_SYS_RESOURCE no score can be below the score of the agent, so a Guaranteed instance gets that
    score; the order of the classes stays.
    """
    if spec.qos not in Qos.__members__:
        return None
    score = oom_score_adj(Qos[spec.qos], spec.requests.memory or 0, machine_memory(proc))
    if _may_lower(proc):
        return score
    with suppress(OSError, ValueError):
        return max(score, int((proc / "self/oom_score_adj").read_text()))
    return max(score, 0)


def machine_memory(proc: Path = Path("/proc")) -> int:
    """The memory of the machine in bytes."""
    lines = (proc / "meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:"))


def _may_lower(proc: Path) -> bool:
    with suppress(OSError, StopIteration, ValueError):
        lines = (proc / "self/status").read_text().splitlines()
        effective = next(int(line.split()[1], 16) for line in lines if line.startswith("CapEff:"))
        return bool(effective >> SYS_RESOURCE_BIT & 1)
    return False
