"""The table of commands and the program's entry point.

`main` imports the module of a command only when the command runs, and turns every error into a message and an
exit code.
"""

import contextlib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import click

from lattice import __version__
from lattice.cli.output import messages as say
from lattice.errors import Full, LatticeError

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)


class Entry(NamedTuple):
    # Import path of the command, as module:attribute.
    target: str
    help: str


SECTIONS: dict[str, dict[str, Entry]] = {
    "Start": {
        "up": Entry(
            "lattice.cli.commands.up:up", "Run everything on this machine: server, store and agents."
        ),
        "server": Entry(
            "lattice.cli.commands.server:server", "Run one API server of a production installation."
        ),
        "kubeconfig": Entry(
            "lattice.cli.commands.kubeconfig:kubeconfig",
            "Print a kubeconfig for kubectl and other clients.",
        ),
    },
    "Objects": {
        "apply": Entry("lattice.cli.commands.apply:apply", "Create or update objects from manifests."),
        "get": Entry("lattice.cli.commands.get:get", "List objects, or show named objects."),
        "describe": Entry(
            "lattice.cli.commands.describe:describe", "Show objects in detail, with conditions and events."
        ),
        "delete": Entry("lattice.cli.commands.delete:delete", "Delete objects and wait until they are gone."),
        "events": Entry("lattice.cli.commands.events:events", "List events, oldest first."),
        "status": Entry(
            "lattice.cli.commands.status:status", "Show what is wrong now, with causes and next commands."
        ),
    },
    "Decide": {
        "plan": Entry(
            "lattice.cli.commands.plan:plan", "Show how a change would affect placements and cost."
        ),
        "why": Entry(
            "lattice.cli.commands.why:why", "Explain why a service is not running, and its placement."
        ),
        "fit": Entry("lattice.cli.commands.fit:fit", "List the smallest changes that would place a service."),
        "whatif": Entry(
            "lattice.cli.commands.whatif:whatif", "Show the effect of a lost pool or a price change."
        ),
        "optimise": Entry(
            "lattice.cli.commands.optimise:optimise", "Show moves that would make the fleet cheaper."
        ),
        "cost": Entry("lattice.cli.commands.cost:cost", "Show the cost by pool, service, node or label."),
        "simulate": Entry(
            "lattice.cli.commands.simulate:simulate", "Schedule workloads offline and explain the decisions."
        ),
    },
    "Run": {
        "agent": Entry("lattice.cli.commands.agent:agent", "Make this machine a node and run its workloads."),
        "tokens": Entry(
            "lattice.cli.commands.tokens:tokens", "Create, list and delete join tokens for machines."
        ),
        "top": Entry("lattice.cli.commands.top:top", "Show current usage and cost; -w refreshes."),
        "logs": Entry("lattice.cli.commands.logs:logs", "Show the output of a workload or a service."),
        "retry": Entry("lattice.cli.commands.retry:retry", "Restart failed replicas now."),
        "cordon": Entry("lattice.cli.commands.cordon:cordon", "Exclude nodes from new workloads."),
        "uncordon": Entry("lattice.cli.commands.cordon:uncordon", "Let nodes accept workloads again."),
        "drain": Entry("lattice.cli.commands.drain:drain", "Evict all workloads from nodes and wait."),
    },
    "Other": {
        "crds": Entry(
            "lattice.cli.commands.crds:crds", "Print the kinds as CustomResourceDefinitions, for Kubernetes."
        ),
        "sim": Entry(
            "lattice.cli.commands.sim:sim", "Check the whole control plane against simulated faults."
        ),
        "completion": Entry(
            "lattice.cli.commands.completion:completion",
            "Print a shell completion script.",
        ),
        "version": Entry(
            "lattice.cli.commands.version:version", "Show the versions of this program and of the server."
        ),
    },
}
COMMANDS: dict[str, Entry] = {}
for _section in SECTIONS.values():
    COMMANDS.update(_section)


# Commands that users of kubectl or nomad expect, and what does the work here.
COMMANDS_OF_KUBECTL = {
    "scale": "use `kubectl scale latticeservice/NAME --replicas=N`, or change spec.replicas.min and apply",
    "rollout": "`lattice get service/NAME -w` follows an update; to undo, apply the earlier manifest",
    "restart": "`lattice retry service/NAME` restarts failed replicas; any change of the manifest, such as an "
    "env value, replaces all of them one by one",
    "exec": "Lattice opens no shell in a workload; `lattice logs service/NAME` shows its output",
    "attach": "`lattice logs service/NAME -f` follows the output",
    "port-forward": "ports are in `lattice get workloads -o yaml`, under status.allocatedPorts",
    "ui": "the server serves the page: open the link that `lattice up` printed, or https://SERVER:PORT/ui/",
    "dashboard": "the server serves the page: open the link that `lattice up` printed, or https://SERVER:PORT/ui/",
    "edit": "use `kubectl edit latticeservice/NAME`",
    "patch": "use `kubectl patch latticeservice/NAME --type=merge -p PATCH`",
    "label": "use `kubectl label latticeservice/NAME KEY=VALUE`",
    "annotate": "use `kubectl annotate latticeservice/NAME KEY=VALUE`",
    "diff": "`lattice plan -f FILE` shows the effect of a change, `kubectl diff -f FILE` the changed fields",
    "wait": "use `kubectl wait latticeservice/NAME --for=condition=Ready`",
    "explain": "use `kubectl explain latticeservice`, or the reference of the kinds",
    "create": "write a manifest and use `lattice apply -f FILE`",
    "run": "write a LatticeWorkload or LatticeService and use `lattice apply -f FILE`",
    "expose": "callers declare a service under spec.resources and get its addresses as environment",
    "autoscale": "set spec.replicas of the LatticeService",
    "login": "`lattice kubeconfig` prints credentials",
    "api-resources": "`lattice get --help` lists the kinds",
}


class LazyGroup(click.Group):
    """A click group that lists commands from SECTIONS and imports only the module of the command that is
    called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            import difflib

            similar = difflib.get_close_matches(args[0], COMMANDS, n=1)
            suggestion = f"; did you mean {similar[0]!r}?" if similar else ""
            if args[0] in COMMANDS_OF_KUBECTL:
                suggestion = f"; {COMMANDS_OF_KUBECTL[args[0]]}"
            ctx.fail(f"there is no command {args[0]!r}{suggestion}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in section.items()])

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list["click.shell_completion.CompletionItem"]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=entry.help)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(__version__, prog_name="lattice", message="%(prog)s %(version)s")
def cli() -> None:
    """Lattice decides where services run, explains every decision and prices it.

    \b
    Examples:
      lattice up                      start on this machine
      lattice apply -f shop/          create or update objects
      lattice get pools,services      list objects
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code of the process."""
    try:
        with cli.make_context("lattice", list(sys.argv[1:] if arguments is None else arguments)) as context:
            code = cli.invoke(context)
        # Flushed here, so that a closed pipe raises inside this function.
        sys.stdout.flush()
        # Commands return an exit code or None.
        return code if isinstance(code, int) else 0
    except LatticeError as e:
        say.error(e)
        return e.exit_code
    except click.exceptions.Exit as e:
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return e.exit_code
    except (KeyboardInterrupt, click.Abort):
        # Exit codes of signals follow the shell: 128 plus the number of the signal.
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit; the null device accepts that flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as e:
        # One sentence with the path, instead of a traceback.
        where = str(e.filename or "")
        if e.errno in DISK_FULL_ERRNOS:
            problem: LatticeError = Full("the disk is full", where=where, fix="free disk space")
        else:
            reason = (e.strerror or str(e)).lower()
            fix = "check the path and its permissions"
            problem = LatticeError(f"cannot be used: {reason}", where=where, fix=fix)
        say.error(problem)
        return problem.exit_code


def run() -> NoReturn:
    """Entry point of the program: run the command line and exit with the command's exit code."""
    try:
        # Open the null device in place of every standard stream that the caller closed.
        # The number of a closed stream would go to the next file that the program opens, and prints would end up
        # in that file.
        for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
            if getattr(sys, name) is None:
                with contextlib.suppress(OSError):
                    os.close(number)
                os.dup2(os.open(os.devnull, os.O_RDWR), number)
                setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for as long as the program runs
        # gRPC reads the variable when its library loads; at the default level gRPC logs every failed connection itself.
        os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
        # Set by the completion script of the shell, not by users.
        if "_LATTICE_COMPLETE" in os.environ:
            cli.main(prog_name="lattice", complete_var="_LATTICE_COMPLETE")
        code = main()
    # Ctrl-C outside of `main`: before the command began or while the command was ending.
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)


if __name__ == "__main__":
    run()
