"""Every failure reason of a workload: its meaning, and whether Lattice retries the workload."""

from typing import NamedTuple

from lattice.lifecycle.workload import FINAL_FAILURES, UNCOUNTED_FAILURES


class Failed(NamedTuple):
    word: str
    meaning: str

    @property
    def then(self) -> str:
        """The reaction of Lattice to the failure."""
        if self.word in FINAL_FAILURES:
            return "not tried again until it is changed, or `lattice retry`"
        return (
            "tried again; no attempt is lost"
            if self.word in UNCOUNTED_FAILURES
            else "tried again, later each time"
        )


FAILURES = (
    Failed("COMMAND_NOT_FOUND", "Its command is not on the machine, or not in the image."),
    Failed("DISCONNECTED", "Its node was cut off for longer than `disconnect` allows, and ended it."),
    Failed("EXITED", "It ended by itself, with code 0, though it is to run on."),
    Failed("IMAGE_NOT_FOUND", "The registry has no such image."),
    Failed("IMAGE_PULL_FAILED", "The image cannot be fetched."),
    Failed("INSUFFICIENT_RESOURCES", "It was killed at its memory limit, or the machine has too little."),
    Failed("INVALID_IMAGE", "The name of the image is wrong, or it cannot be run."),
    Failed("INVALID_SPEC", "What it asks for makes no sense on its node."),
    Failed("MISSING", "Its node was told to start it and does not have it."),
    Failed("NETWORK_ERROR", "Its network cannot be set up."),
    Failed("NOT_APPLIED", "Its node did not get the order to start it."),
    Failed("PORT_BIND_CONFLICT", "Somebody else has the port that it asks for by number."),
    Failed("PORT_TAKEN", "Somebody else has a port that was chosen for it; others are chosen."),
    Failed(
        "RUNTIME_ERROR",
        "It ended with an error: `failureMessage` has the exit code or the signal. Or the runtime failed.",
    ),
    Failed("RUNTIME_UNAVAILABLE", "Its node cannot run it; another may."),
    Failed("START_TIMEOUT", "It did not come up in time."),
    Failed("STORAGE_ERROR", "The disk is full, or cannot be written."),
    Failed("UNHEALTHY", "Its liveness or startup probe failed."),
)
