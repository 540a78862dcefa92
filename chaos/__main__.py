"""`python -m chaos`: builds the namespaces, runs a trial in the namespaces, and removes the namespaces
whatever the result."""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys

from chaos.leftovers import clear, close_folder, make_folder
from chaos.network import HUB, build, namespace, remove
from chaos.plan import CALM, KINDS, chosen
from chaos.programs import ROOT

REQUIRED_PROGRAMS = ("ip", "iptables", "strace", "setpriv", "etcd", "mount")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Chaos with real processes, by a seed, judged by the simulator's checker.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("CHAOS_SECONDS") or 1200),
        help=f"how long it takes in all, once everything is up; the last {CALM:g} of them,"
        f" or the last half of less than {2 * CALM:g}, are without a fault (%(default)g)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=int(os.environ.get("CHAOS_SEED") or 1),
        help="which faults, in which order",
    )
    parser.add_argument("--agents", type=int, default=30)
    parser.add_argument(
        "--only",
        default="",
        metavar="WORDS",
        help="only faults with these words, such as 'etcd' or 'kill -9, leader'",
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep the folder with logs and notes whatever comes of the run"
    )
    parser.add_argument(
        "--clean", action="store_true", help="only remove what runs that were killed have left behind"
    )
    options = parser.parse_args()
    if not chosen(options.only):
        titles = "; ".join(kind.title for kind in KINDS)
        parser.error(
            f"--only: no fault has {options.only!r} in its name; use a part of one of these: {titles}"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for line in clear():
        print(line)
    if options.clean:
        return 0
    if missing := [name for name in REQUIRED_PROGRAMS if shutil.which(name) is None]:
        print(f"not run: {', '.join(missing)} cannot be found; install it and try again")
        return 2
    if os.geteuid():
        print("not run: network namespaces need root")
        return 2
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    run = os.getpid()
    folder = make_folder(run)
    trial_command = [
        sys.executable,
        "-m",
        "chaos.trial",
        "--run",
        str(run),
        "--seed",
        str(options.seed),
        "--seconds",
        str(options.seconds),
    ]
    keep = options.keep
    try:
        build(run)
        print(
            f"seed {options.seed}, {options.seconds:g} s, {options.agents} agents; logs and notes in {folder}",
            flush=True,
        )
        command = [
            "setpriv",
            "--pdeathsig",
            "TERM",
            "ip",
            "netns",
            "exec",
            namespace(run, HUB),
            *trial_command,
        ]
        trial = subprocess.Popen(
            [*command, "--agents", str(options.agents), "--folder", str(folder), "--only", options.only],
            cwd=ROOT,
        )
        try:
            code = trial.wait()
            keep = keep or code != 0
        finally:
            if trial.poll() is None:
                trial.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    trial.wait(30)
                trial.kill()
    finally:
        remove(run)
        close_folder(folder, keep=keep)
    if keep:
        print(f"kept for you to look at, until you remove it: {folder}")
    return code


if __name__ == "__main__":
    sys.exit(main())
