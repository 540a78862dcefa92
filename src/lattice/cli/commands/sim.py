"""`lattice sim`: runs the whole control plane in virtual time and in one process, under faults drawn from a
seed."""

import click

from lattice.cli.client.options import Command
from lattice.cli.output.messages import CountProgress

# Seeds between two progress lines when standard error is not a terminal.
PROGRESS_EVERY_SEEDS = 100


@click.group()
def sim() -> None:
    """Run the whole control plane in virtual time, under faults drawn from seeds, and check the invariants.

    \b
    Examples:
      lattice sim run --seeds 500
      lattice sim replay 42
    """  # fmt: skip


@sim.command(cls=Command)
@click.option(
    "--seeds",
    "count",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="Number of seeds.",
)
@click.option(
    "--first",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="SEED",
    help="First seed.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    metavar="N",
    help="Parallel processes.",
)
@click.option(
    "--planted",
    default="",
    metavar="NAME",
    help="Plant this bug; stops at the first seed that finds it.",
)
@click.option(
    "--digests",
    is_flag=False,
    flag_value="full",
    type=click.Choice(["full", "decisions"]),
    help="Print a hash of each seed's history. `decisions` leaves out messages and explanations.  [default: full]",
)
@click.option(
    "--twice",
    is_flag=True,
    help="Run each seed again in a process with another hash seed, and compare.",
)
def run(count: int, first: int, workers: int, planted: str, digests: str | None, twice: bool) -> None:
    """Run many seeds; print violated invariants and how to replay them.

    \b
    Examples:
      lattice sim run --seeds 500 --workers 2
      lattice sim run --seeds 200 --twice
      lattice sim run --planted no-fence --seeds 500
    """  # fmt: skip
    from lattice.sim.planted_bugs.catalog import PLANTED_BUGS
    from lattice.sim.seed_runner import digests_in_new_process, run_seeds, totals_lines, violation_lines

    _check_bug_name(planted)
    results, progress = [], CountProgress(count, "seeds", PROGRESS_EVERY_SEEDS)
    faults = violations = 0
    for result in run_seeds(
        range(first, first + count), workers, planted, with_decisions=digests == "decisions"
    ):
        results.append(result)
        faults += sum(result.faults.values())
        violations += len(result.violations)
        progress.update(len(results), f", {faults:,} faults, {violations:,} violations")
        if digests or not result.is_sound:
            progress.erase()
        if digests:
            click.echo(f"{result.seed} {result.decisions_digest or result.digest}")
        if not result.is_sound:
            click.echo("\n".join(violation_lines(result)))
        # Only a violation of the invariants that the bug is meant to break counts as found.
        if planted and {number for number, *_ in result.violations} & set(PLANTED_BUGS[planted].violates):
            progress.erase()
            click.echo(f"{planted} was found by seed {result.seed}; seeds run: {len(results)}")
            return
    progress.erase()
    click.echo("\n".join(totals_lines(results)))
    differing = []
    if twice:
        digests_by_seed = digests_in_new_process(first, count, workers)
        differing = [
            str(result.seed) for result in results if digests_by_seed.get(result.seed) != result.digest
        ]
        seeds = f": {', '.join(differing)}" if differing else ""
        click.echo(f"{len(results):,} seeds run twice, {len(differing)} with a different history{seeds}")
    # A planted bug that no seed found is a failure of the checker.
    if planted or differing or not all(result.is_sound for result in results):
        raise click.exceptions.Exit(1)


@sim.command(cls=Command)
@click.argument("seed", type=click.IntRange(min=0))
@click.option("--planted", default="", metavar="NAME", help="Plant this bug.")
@click.option(
    "--log", "with_log", is_flag=True, help="Print what servers and agents log, with the simulated time."
)
def replay(seed: int, planted: str, with_log: bool) -> None:
    """Run one seed again, with the same history.

    \b
    Examples:
      lattice sim replay 42
    """  # fmt: skip
    from lattice.sim.seed_runner import replay_seed, violation_lines

    _check_bug_name(planted)
    result = replay_seed(seed, planted, with_log=with_log)
    click.echo(
        "\n".join(violation_lines(result))
        if not result.is_sound
        else f"seed {seed}: no violation; {result.options}"
    )
    click.echo(f"history {result.digest}")
    if not result.is_sound:
        raise click.exceptions.Exit(1)


def _check_bug_name(planted: str) -> None:
    from lattice.errors import UsageError
    from lattice.sim.planted_bugs.catalog import PLANTED_BUGS

    if planted and planted not in PLANTED_BUGS:
        raise UsageError(
            f"there is no planted bug {planted!r}",
            where="--planted",
            fix=f"use one of {', '.join(PLANTED_BUGS)}",
        )
