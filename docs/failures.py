"""Every failure reason of a workload: its meaning, and whether Lattice retries the workload."""

from typing import NamedTuple

from lattice.lifecycle.retry import (
    EVICTED_FROM_NODE,
    FINAL_FAILURES,
    NODE_LOST,
    PORT_CONFLICT,
    UNCOUNTED_FAILURES,
)


class Failed(NamedTuple):
    word: str
    meaning: str

    @property
    def then(self) -> str:
        """The reaction of Lattice to the failure."""
        if self.word == PORT_CONFLICT:
            return (
                "a replica of a service is restarted with a growing back-off; any other workload only after a "
                "change or `lattice retry`"
            )
        if self.word in {*FINAL_FAILURES, NODE_LOST, EVICTED_FROM_NODE}:
            return "no restart until the workload changes or `lattice retry`"
        return (
            "restarted; the attempt is not counted"
            if self.word in UNCOUNTED_FAILURES
            else "restarted with a growing back-off"
        )


FAILURES = (
    Failed("COMMAND_NOT_FOUND", "The command is not on the machine, or not in the image."),
    Failed(
        "DISCONNECTED",
        "The node had no contact with the control plane for longer than `disconnect` allows, and the agent stopped the workload.",
    ),
    Failed(
        "EVICTED",
        "A workload with restartPolicy Never was evicted from its node after it had started; it is not started again.",
    ),
    Failed("EXITED", "The process exited with exit code 0, but the workload must keep running."),
    Failed("IMAGE_NOT_FOUND", "The registry has no such image."),
    Failed("IMAGE_PULL_FAILED", "The image cannot be pulled."),
    Failed(
        "INSUFFICIENT_RESOURCES",
        "The workload exceeded its memory limit and was killed, or the machine has too little memory.",
    ),
    Failed("INVALID_IMAGE", "The name of the image is invalid, or the image cannot run."),
    Failed("INVALID_SPEC", "The spec of the workload is not valid on its node."),
    Failed("MISSING", "The node was assigned the workload and does not have it."),
    Failed("NETWORK_ERROR", "The network of the workload cannot be set up."),
    Failed(
        "NODE_LOST",
        "The node of a workload with restartPolicy Never was lost after the start; the workload is not started again.",
    ),
    Failed("NOT_APPLIED", "The node did not receive the assignment of the workload."),
    Failed("PORT_BIND_CONFLICT", "Another process uses the port that the workload requests by number."),
    Failed(
        "PORT_TAKEN",
        "Another process uses a port that Lattice allocated to the workload; Lattice allocates other ports.",
    ),
    Failed(
        "RUNTIME_ERROR",
        "The process exited with an error, or the runtime failed. `failureMessage` has the exit code or the signal.",
    ),
    Failed("RUNTIME_UNAVAILABLE", "The node has no runtime for the workload; another node may."),
    Failed("START_TIMEOUT", "The workload did not start in time."),
    Failed("STORAGE_ERROR", "The disk is full or cannot be written."),
    Failed("UNHEALTHY", "The liveness or startup probe failed."),
)
