"""`lattice completion`: the script with which a shell completes commands, flags and kinds."""

import click

from lattice.cli.client.options import Command


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a shell completion script.

    \b
    Examples:
      source <(lattice completion bash)
      lattice completion zsh > "${fpath[1]}/_lattice"
      lattice completion fish > ~/.config/fish/completions/lattice.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is None:
        raise click.UsageError(f"no completion for {shell}")
    # The base class renders the template; the bash class would first start bash to check its version.
    click.echo(
        ShellComplete.source(
            completion_class(
                click.get_current_context().find_root().command, {}, "lattice", "_LATTICE_COMPLETE"
            )
        )
    )
