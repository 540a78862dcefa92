"""The page of the scenario commands, from the table that the scenario reader uses."""

from collections.abc import Iterator
from pathlib import Path

from docs.markdown import fenced, table
from lattice.sim.scenarios.scenario_world import MAX_SERVERS
from lattice.sim.scenarios.script import COMMANDS, usage

EXAMPLE = Path(__file__).parents[1] / "tests" / "sim" / "crash_is_retried.txt"


def scenarios() -> Iterator[str]:
    yield "# Scenarios"
    yield (
        "`tests/sim/*.txt` are scenarios in the [simulated world](../reliability.md#the-whole-control-plane-simulated): "
        "a sentence that says what is shown, one command a line, `----`, and what Lattice says to all of them. "
        "An empty line begins the next part. Time and chance are the simulator's own: the same file says the same words each time."
    )
    yield fenced(EXAMPLE.read_text().strip())
    yield (
        "A new one is a file with commands alone: `REWRITE=1 make sim` writes what is said below them, to be read like code. "
        "A line that cannot be done is answered with its number and the words that exist."
    )
    rows = (
        (f"`{usage(verb)}`", " ".join((handler.__doc__ or "").split())) for verb, handler in COMMANDS.items()
    )
    yield table(("command", "what it does"), rows)
    servers = ", ".join(f"`s{number + 1}`" for number in range(MAX_SERVERS))
    yield (
        f"Servers are {servers}, or `leader` for the current leader; machines are `rack-1`, `rack-2` … and those that pools make, "
        "such as `east-001-small-1`; `@lone` is the node of the workload `lone`. What is in brackets may be left out, and is shown "
        "with what it is then; what follows `version`, with an example."
    )
