"""`lattice agent`: makes this machine a node and runs the workloads that the control plane assigns."""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lattice.cli.client.daemon_flags import config_flag
from lattice.cli.client.options import Duration
from lattice.cli.commands.agent_machine import AgentOptions, parse_ports, read_machine
from lattice.cli.commands.server import configure_logging, install_stop_event
from lattice.cli.output import messages as say
from lattice.errors import Conflict, Denied, LatticeError, Unavailable, UsageError

if TYPE_CHECKING:
    from random import Random

    from lattice.agent.executor import Executor
    from lattice.agent.host.machine_info import MachineInfo
    from lattice.agent.host.runtime_protocol import Runtime
    from lattice.agent.identity import Identity
    from lattice.agent.session import Agent
    from lattice.agent.state_file import StateFile
    from lattice.clock import Clock


# In the data folder: `lattice agent --leave` asks the running agent to leave. The agent writes the reason into the
# file if the server rejects the request.
LEAVE_FILE = "leave"
LEAVE_POLL_S = 1.0
# Time until `--leave` says where to look for what holds it up.
LEAVE_NOTE_AFTER_S = 30.0


@click.command()
@config_flag("LATTICE_AGENT_CONFIG")
@click.option(
    "--server",
    multiple=True,
    envvar=["LATTICE_SERVER", "CONTROL_PLANE_API_URL"],
    show_envvar=True,
    metavar="URL[,URL]",
    help="API server to join, as https://HOST:PORT. Of several servers, the agent uses any that answers. Repeatable.",
)
@click.option(
    "--server-file",
    default="",
    metavar="FILE",
    help="File with the address of the server, read again before every connection.",
)
@click.option(
    "--join",
    "token",
    default="",
    envvar="LATTICE_JOIN_TOKEN",
    show_envvar=True,
    metavar="TOKEN",
    help="Token from `lattice tokens create`; needed only to join.",
)
@click.option(
    "--data-dir",
    default="./.lattice-agent",
    show_default=True,
    envvar="LATTICE_AGENT_DATA_DIR",
    show_envvar=True,
    metavar="DIR",
    help="Folder for the key, the certificate, the state and the logs.",
)
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Name of the node, if the token sets none; default: the host name.",
)
@click.option(
    "--runtime",
    type=click.Choice(["all", "process", "container", "fake"]),
    default="all",
    show_default=True,
    help="Runtimes to use; fake runs nothing.",
)
@click.option(
    "--cpu",
    default="",
    metavar="CORES",
    help="Cores for workloads, such as 4 or 500m; default: all cores of the machine.",
)
@click.option(
    "--memory",
    default="",
    metavar="BYTES",
    help="Memory for workloads, such as 16Gi; default: all memory of the machine.",
)
@click.option(
    "--disk",
    default="",
    metavar="BYTES",
    help="Disk for workloads; default: the file system of the data folder.",
)
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="GPU",
    help="GPUs of the machine: MODEL, MODEL=COUNT, a count, or none; default: detected. Repeatable.",
)
@click.option(
    "--gpu-model",
    default="",
    metavar="MODEL",
    help="Model of the detected or counted GPUs, such as nvidia-a100.",
)
@click.option(
    "--detect/--no-detect",
    default=True,
    show_default=True,
    help="Report the GPUs and huge pages of the machine; off for several agents on one machine.",
)
@click.option(
    "--extended",
    multiple=True,
    metavar="NAME=COUNT",
    help="Other resource of the machine, such as example.com/dongle=2. Repeatable.",
)
@click.option(
    "--licence", "licences", multiple=True, metavar="NAME", help="Licence of the machine. Repeatable."
)
@click.option("--machine-image", default="", metavar="NAME", help="Image that the machine was started from.")
@click.option(
    "--machine-file",
    default="",
    metavar="FILE",
    help="YAML or JSON file with extended, licences, machineImage and labels; flags win.",
)
@click.option(
    "--reserve",
    multiple=True,
    metavar="NAME=AMOUNT",
    help="Resources kept for the machine itself, such as cpu=500m. Repeatable.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="KEY=VALUE",
    help="Label of the node, with the prefix agent.lattice.dev/. Repeatable.",
)
@click.option(
    "--ports",
    default="",
    metavar="FIRST-LAST",
    help="Ports for workloads; default: a free block of 200.",
)
@click.option(
    "--address",
    default="",
    metavar="IP",
    help="Address of this machine for clients of its workloads; default: detected.",
)
@click.option(
    "--grace",
    type=Duration(),
    default="30s",
    show_default=True,
    help="Time that a workload gets to stop.",
)
@click.option(
    "--stop-workloads-on-exit",
    "stop_on_exit",
    is_flag=True,
    help="Stop the workloads when the agent stops; default: they keep running.",
)
@click.option(
    "--clear",
    is_flag=True,
    help="Stop and remove everything that an earlier agent left in the data folder, then exit.",
)
@click.option(
    "--leave",
    is_flag=True,
    help="Take this machine back: drain its node, delete the node, then exit.",
)
@click.option("--verbose", is_flag=True, help="Log debug messages.")
def agent(server: tuple[str, ...], verbose: bool, **values: Any) -> None:
    """Make this machine a node and run its workloads.

    When the agent stops, its workloads keep running; when the agent starts again, it adopts them.

    \b
    Examples:
      lattice agent --server https://lattice.example:7443 --join "$TOKEN"
      lattice agent --server https://127.0.0.1:7443 --data-dir /var/lib/lattice-agent
      lattice agent --data-dir /var/lib/lattice-agent --leave
      lattice agent --data-dir /var/lib/lattice-agent --clear
    """  # fmt: skip
    configure_logging(verbose=verbose)
    asyncio.run(_run(AgentOptions(server=",".join(server), **values)))


async def _run(options: AgentOptions) -> None:
    from lattice.agent.executor import Executor
    from lattice.agent.state_file import StateFile
    from lattice.clock import SystemClock
    from lattice.tracing import TRACING

    TRACING.enable()
    folder, clock = Path(options.data_dir).resolve(), SystemClock()
    # The state file holds the lock of the folder: a second agent ends here.
    try:
        state = StateFile(folder)
    except Conflict:
        if not options.leave:
            raise
        return await _request_leave(folder)
    try:
        runtime, names = await _runtime(options, folder, state, clock)
        executor = Executor(runtime, state, clock, grace=options.grace)
        try:
            if options.clear:
                # Adopt the workloads of the earlier agent first, then remove them.
                await executor.adopt()
                await executor.clear()
            else:
                await _serve(options, folder, executor, names)
        finally:
            await runtime.close()
    finally:
        state.close()


async def _runtime(
    options: AgentOptions, folder: Path, state: "StateFile", clock: "Clock"
) -> tuple["Runtime", tuple[str, ...]]:
    if options.runtime == "fake":
        import random

        from lattice.agent.runtimes.fake import FakeMachine, FakeRuntime

        return FakeRuntime(FakeMachine(clock, random.Random()), state), ("process", "container")  # noqa: S311 - pretending
    from lattice.agent.runtimes.router import detect_runtimes

    router = await detect_runtimes(folder, state, clock)
    if options.runtime != "all":
        if options.runtime not in router.runtimes:
            reason = router.unavailable_reasons.get(options.runtime, "")
            raise UsageError(
                f"this machine has no {options.runtime} runtime: {reason}",
                where="--runtime",
                fix="omit --runtime",
            )
        router.unavailable_reasons |= dict.fromkeys(
            router.runtimes.keys() - {options.runtime}, "excluded by --runtime"
        )
        router.runtimes = {options.runtime: router.runtimes[options.runtime]}
    return router, tuple(router.runtimes)


async def _serve(
    options: AgentOptions, folder: Path, executor: "Executor", runtimes: tuple[str, ...]
) -> None:
    import random

    from lattice.agent import join
    from lattice.agent.certificate_renewal import CertificateRenewal
    from lattice.agent.identity import Identity
    from lattice.agent.port_block import PortBlock
    from lattice.agent.session import NodeRemoved

    identity, rng = Identity.load(folder), random.Random()  # noqa: S311 - jitter
    if options.leave and not identity.has_joined:
        raise UsageError("this machine has not joined", where=str(folder), fix="nothing is left to do")
    if not identity.has_joined:
        # A request to leave is over with the membership that it was about.
        (folder / LEAVE_FILE).unlink(missing_ok=True)
    previous_authority = identity.authority
    await asyncio.to_thread(_join_if_needed, identity, options)
    # Every control plane numbers its own terms: the term of the previous control plane says nothing here.
    if previous_authority and identity.authority != previous_authority:
        executor.term = 0

    # Read again on every use: --server-file may change while the agent runs.
    def servers() -> str:
        return _read_server_file(options.server_file) or options.server or identity.join_record.server

    async def renew_certificate() -> bytes:
        return await asyncio.to_thread(join.renew_expired_certificate, identity, servers())

    port_block = None if options.ports else PortBlock(folder)
    ports = parse_ports(options.ports) if port_block is None else port_block.port_range
    machine = read_machine(options, folder, runtimes, ports)
    agent = _build_agent(options, executor, identity, machine, servers, rng)
    if options.leave:
        agent.leave()
    await agent.discover_servers()
    try:
        await _run_until_stopped(
            agent.run(),
            CertificateRenewal(identity, agent, executor.clock, rng, renew_certificate).run(),
            _watch_leave_request(folder, agent, identity.join_record.node, is_required=options.leave),
        )
    except NodeRemoved:
        # The node was removed: delete the credentials, so that the machine can join again with a new token.
        identity.forget()
        (folder / LEAVE_FILE).unlink(missing_ok=True)
        if not agent.is_leaving:
            raise
        say.note("this machine has left: its workloads have moved and its node is deleted")
    if options.stop_on_exit:
        await executor.stop_all()


def _build_agent(
    options: AgentOptions,
    executor: "Executor",
    identity: "Identity",
    machine: "MachineInfo",
    servers: Callable[[], str],
    rng: "Random",
) -> "Agent":
    """The agent of a joined machine; `servers` returns the current addresses of the servers."""
    from lattice.agent import join
    from lattice.agent.host.usage import NodeMeter
    from lattice.agent.identity import JoinRecord
    from lattice.agent.session import MAX_ADDRESSES, Agent
    from lattice.agent.transport import GrpcTransport

    def save_addresses(*addresses: str) -> None:
        # A full disk must not cut the agent off from the control plane.
        with contextlib.suppress(OSError):
            identity.save_join_record(
                JoinRecord(
                    identity.join_record.node,
                    servers(),
                    # Newest address first; older addresses stay as a fallback.
                    tuple(dict.fromkeys([*addresses, *identity.join_record.agents]))[:MAX_ADDRESSES],
                )
            )

    async def discover_addresses() -> list[str]:
        addresses = await asyncio.to_thread(join.discover_agent_addresses, identity, servers())
        save_addresses(*identity.join_record.agents[:1], *addresses)
        return addresses

    async def rejoin() -> bool:
        return await asyncio.to_thread(_try_rejoin, identity, replace(options, server=servers()))

    return Agent(
        executor,
        GrpcTransport(lambda: identity),
        executor.clock,
        rng,
        machine.registration,
        list(identity.join_record.agents),
        node_usage=NodeMeter(executor.clock, identity.folder).usage,
        # With explicit limits the agent is one of several on the machine: it reports only the usage of its own
        # workloads.
        shares_machine=bool(options.cpu or options.memory or options.disk),
        discover_addresses=discover_addresses,
        on_connected=save_addresses,
        rejoin=rejoin,
    )


async def _watch_leave_request(folder: Path, agent: "Agent", node: str, *, is_required: bool) -> NoReturn:
    """Let the agent leave once `lattice agent --leave` has asked for it; report a rejection to the command. Raise
    Denied for a rejection if the agent was started to leave."""
    file, waited_s = folder / LEAVE_FILE, 0.0
    while True:
        if is_required and LEAVE_NOTE_AFTER_S <= waited_s < LEAVE_NOTE_AFTER_S + LEAVE_POLL_S:
            say.note(leave_note(node))
        waited_s += LEAVE_POLL_S
        if agent.leave_rejection and is_required:
            raise Denied(agent.leave_rejection, where=str(folder))
        # A full disk must not end the agent.
        with contextlib.suppress(OSError):
            if agent.leave_rejection:
                file.write_text(agent.leave_rejection)
                agent.leave_rejection = ""
            elif not agent.is_leaving and file.exists() and not file.read_text():
                agent.leave()
        await asyncio.sleep(LEAVE_POLL_S)


async def _request_leave(folder: Path) -> None:
    """Ask the agent that runs on the folder to leave, and wait for its end."""
    from lattice.agent.identity import Identity
    from lattice.agent.state_file import StateFile

    file, node = folder / LEAVE_FILE, Identity.load(folder).join_record.node
    file.write_text("")
    file.chmod(0o600)
    say.note("the agent drains its node; its workloads move first")
    waited_s = 0.0
    while True:
        await asyncio.sleep(LEAVE_POLL_S)
        waited_s += LEAVE_POLL_S
        with contextlib.suppress(OSError):
            if rejection := file.read_text():
                raise Denied(rejection, where=str(folder))
        with contextlib.suppress(Conflict):
            StateFile(folder).close()
            break
        if LEAVE_NOTE_AFTER_S <= waited_s < LEAVE_NOTE_AFTER_S + LEAVE_POLL_S:
            say.note(leave_note(node))
    if Identity.load(folder).has_joined:
        raise Unavailable(
            "the agent ended before the machine had left", where=str(folder), fix="run the command again"
        )
    say.note("this machine has left")


def leave_note(node: str) -> str:
    """Where to look for what holds up a machine that leaves."""
    return (
        f"node {node} is not empty yet: the condition Drained of `lattice describe node/{node}` says what blocks it."
        " The agent goes on leaving if this command is interrupted"
    )


def _read_server_file(file: str) -> str:
    """The address in --server-file; empty while the file is unreadable, so that the last known address stays
    in use."""
    try:
        return Path(file).read_text().strip() if file else ""
    except OSError:
        return ""


async def _run_until_stopped(*running: Any) -> None:
    """Run coroutines until a signal stops them; an exception of any coroutine ends all and is raised."""
    stop = install_stop_event()
    tasks = [asyncio.create_task(coroutine) for coroutine in (*running, stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _join_if_needed(identity: "Identity", options: AgentOptions) -> None:
    """Join with the token, unless the machine has joined this control plane already: a token is valid only
    once, and a machine that has joined needs no token."""
    import time

    from lattice.agent.join import join
    from lattice.clock import SystemClock
    from lattice.kinds.join_token import fingerprint, parse_token

    # A token of another authority moves the machine to another control plane.
    is_other_control_plane = (
        identity.has_joined
        and bool(options.token)
        and fingerprint(identity.authority) != parse_token(options.token).authority
    )
    is_expired = identity.has_joined and identity.expires_at <= SystemClock().now()
    # An agent with an expired certificate and no token renews the certificate while running.
    if identity.has_joined and not is_other_control_plane and (not is_expired or not options.token):
        return
    if not options.token or not options.server:
        fix = "give --server and --join with a token from `lattice tokens create`"
        raise UsageError("this machine has not joined", where=str(identity.folder), fix=fix)
    name = options.name or _host_name()
    # Retried with back-off for up to 7.7 seconds: a server may just be starting.
    for pause_s in (0.2, 0.5, 1.0, 2.0, 4.0):
        try:
            join(identity, options.server, options.token, name)
            return
        except Unavailable:
            time.sleep(pause_s)
    join(identity, options.server, options.token, name)


def _try_rejoin(identity: "Identity", options: AgentOptions) -> bool:
    """Join again after the node was recreated, if the agent has a token; return whether the join succeeded.

    Raises Unavailable or TooManyRequests while no server answers, so that the caller tries again.
    """
    from lattice.agent.join import join
    from lattice.errors import TooManyRequests

    if not options.token or not options.server:
        return False
    try:
        join(identity, options.server, options.token, options.name or _host_name())
    # Not decided yet: the caller keeps the node and tries again.
    except (Unavailable, TooManyRequests):
        raise
    except LatticeError as error:
        say.warning(f"cannot join again: {error}")
        return False
    return True


def _host_name() -> str:
    import re
    import socket

    return re.sub(r"[^a-z0-9.-]+", "-", socket.gethostname().lower()).strip("-.")
