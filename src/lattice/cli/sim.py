"""`lattice sim`: the whole control plane against faults that a seed draws, in virtual time; nothing of it leaves this process."""

import click

from lattice.cli.options import Command


@click.group()
def sim() -> None:
    """Run the whole control plane, in virtual time, against faults drawn from seeds, and check that it keeps its promises.

    \b
    Examples:
      lattice sim run --seeds 500
      lattice sim replay 42
    """  # fmt: skip


@sim.command(cls=Command)
@click.option("--seeds", "count", type=click.IntRange(min=1), default=100, show_default=True, metavar="N", help="How many.")
@click.option("--first", type=click.IntRange(min=0), default=0, show_default=True, metavar="SEED", help="The first of them.")
@click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True, metavar="N", help="Processes at once.")
@click.option("--planted", default="", metavar="NAME", help="With this bug planted; it ends with the first seed that finds it.")
@click.option("--digests", is_flag=True, help="Print the hash of each history: equal seeds have equal ones.")
def run(count: int, first: int, workers: int, planted: str, digests: bool) -> None:
    """Run many seeds; says what was violated and how to see it again.

    \b
    Examples:
      lattice sim run --seeds 500 --workers 2
      lattice sim run --planted no-fence --seeds 500
    """  # fmt: skip
    from lattice.sim.planted import PLANTED
    from lattice.sim.report import run_many, shown, totals

    _known(planted)
    done = []
    for each in run_many(range(first, first + count), workers, planted):
        done.append(each)
        if digests:
            click.echo(f"{each.seed} {each.digest}")
        if not each.is_sound:
            click.echo("\n".join(shown(each)))
        if planted and {number for number, *_ in each.violations} & set(PLANTED[planted].finds):
            click.echo(f"{planted} was found by seed {each.seed}, after {len(done)}")
            return
    figures, faults = totals(done)
    click.echo(", ".join(f"{count:,} {name}" for name, count in figures.items()))
    click.echo("faults: " + (", ".join(f"{name} {count:,}" for name, count in sorted(faults.items())) or "none"))
    if figures["violations"] or planted:
        raise click.exceptions.Exit(1)


@sim.command(cls=Command)
@click.argument("seed", type=click.IntRange(min=0))
@click.option("--planted", default="", metavar="NAME", help="With this bug planted.")
@click.option("--log", "with_log", is_flag=True, help="Print what servers and agents log, with the simulated time.")
def replay(seed: int, planted: str, with_log: bool) -> None:
    """Run one seed again; the same happens.

    \b
    Examples:
      lattice sim replay 42
    """  # fmt: skip
    from lattice.sim.report import replayed, shown

    _known(planted)
    found = replayed(seed, planted, with_log=with_log)
    click.echo("\n".join(shown(found)) if not found.is_sound else f"seed {seed}: no violation; {found.options}")
    click.echo(f"history {found.digest}")
    if not found.is_sound:
        raise click.exceptions.Exit(1)


def _known(planted: str) -> None:
    from lattice.cli.usage import Misused
    from lattice.sim.planted import PLANTED

    if planted and planted not in PLANTED:
        raise Misused(f"there is no planted bug {planted!r}", where="--planted", fix=f"use one of {', '.join(PLANTED)}")
