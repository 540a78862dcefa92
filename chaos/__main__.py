"""`python -m chaos`: makes the namespaces, lets one trial run in them, and removes them whatever became of it."""

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

NEEDS = ("ip", "iptables", "strace", "setpriv", "etcd", "mount")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos",
        description="Chaos with real processes, by a seed, judged by the simulator's checker.",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=float(os.environ.get("CHAOS_SECONDS") or 1200),
        help=f"how long it takes in all, once everything is up; the last {CALM:g} of them, or the last half of less than {2 * CALM:g},"
        " are without a fault (%(default)g)",
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
    asked = parser.parse_args()
    if not chosen(asked.only):
        known = "; ".join(kind.title for kind in KINDS)
        parser.error(f"--only: no fault has {asked.only!r} in its name; use a part of one of these: {known}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for line in clear():
        print(line)
    if asked.clean:
        return 0
    if missing := [name for name in NEEDS if shutil.which(name) is None]:
        print(f"not run: {', '.join(missing)} cannot be found; install it and try again")
        return 2
    if os.geteuid():
        print("not run: network namespaces need root")
        return 2
    return _run(asked)


def _run(asked: argparse.Namespace) -> int:
    run = os.getpid()
    folder = make_folder(run)
    words = [
        sys.executable,
        "-m",
        "chaos.trial",
        "--run",
        str(run),
        "--seed",
        str(asked.seed),
        "--seconds",
        str(asked.seconds),
    ]
    keep = asked.keep
    try:
        build(run)
        print(
            f"seed {asked.seed}, {asked.seconds:g} s, {asked.agents} agents; logs and notes in {folder}",
            flush=True,
        )
        command = ["setpriv", "--pdeathsig", "TERM", "ip", "netns", "exec", namespace(run, HUB), *words]
        trial = subprocess.Popen(
            [*command, "--agents", str(asked.agents), "--folder", str(folder), "--only", asked.only], cwd=ROOT
        )
        try:
            code = trial.wait()
            keep = keep or code != 0
        finally:
            _end(trial)
    finally:
        remove(run)
        close_folder(folder, keep=keep)
    if keep:
        print(f"kept for you to look at, until you remove it: {folder}")
    return code


def _end(trial: "subprocess.Popen[bytes]") -> None:
    if trial.poll() is None:
        trial.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            trial.wait(30)
        trial.kill()


if __name__ == "__main__":
    sys.exit(main())
