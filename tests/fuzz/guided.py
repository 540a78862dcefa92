"""Fuzz one parser, guided by which lines it reaches: `python tests/fuzz/guided.py "join token" --seconds 600`, or `--all`.

Fails on any exception that is not an error of ours, on an input that takes over 100 ms of CPU, and when memory grows by more than 64 MiB.
"""

import argparse
import contextlib
import io
import resource
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
from fuzz.outcome import Outcome, outcome_of, table

with (
    contextlib.redirect_stderr(io.StringIO()),
    atheris.instrument_imports(include=["lattice"]),
):  # it names each module there
    from fuzz.parsers import PARSERS, Parser, refuses_or_takes

SLOW, GROWTH = 0.1, 64 * 1024  # seconds of CPU; KiB
WARM = 2000  # inputs before memory is measured: what is made once, and kept, is made by then


class Watched:
    """Counts, and raises what would be a finding."""

    def __init__(self, name: str) -> None:
        self.parser = PARSERS[name]
        self.count = self.resident = 0

    def __call__(self, data: bytes) -> None:
        if (
            seconds(self.parser, data) > SLOW
            and (least := min(seconds(self.parser, data) for _ in range(3))) > SLOW
        ):
            raise RuntimeError(f"{least:.3f} s of CPU for {len(data)} bytes")
        self.count += 1
        self._weigh()

    def _weigh(self) -> None:
        if self.count % WARM:
            return
        now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.resident = self.resident or now
        if now - self.resident > GROWTH:
            raise MemoryError(f"{(now - self.resident) // 1024} MiB more after {self.count} inputs")


def seconds(parser: Parser, data: bytes) -> float:
    """Of CPU; asked again if it seems long, for a machine that was busy elsewhere is no finding."""
    began = time.process_time()
    refuses_or_takes(parser, data)
    return time.process_time() - began


def one(name: str, seconds_each: int, folder: Path) -> None:
    """Ends the process."""
    watched = Watched(name)
    folder.mkdir(parents=True, exist_ok=True)
    for number, example in enumerate(watched.parser.examples):
        (folder / f"example-{number}").write_bytes(example)
    words = folder.with_suffix(".dict")
    words.write_text(
        "".join('"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in watched.parser.words)
    )
    flags = [
        f"-max_total_time={seconds_each}",
        f"-dict={words}",
        "-max_len=8192",
        f"-artifact_prefix={folder}.found-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(folder)], watched)
    atheris.Fuzz()


def every(seconds_each: int, corpus: Path, at_once: int) -> int:
    """Each in a process of its own, so many side by side; prints a table, and returns how many found something."""

    def run(name: str) -> Outcome:
        command = [sys.executable, __file__, name, "--seconds", str(seconds_each), "--corpus", str(corpus)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        outcome = outcome_of(name, done.returncode, done.stderr)
        print(f"{name}: {'FOUND' if outcome.found else 'done'}", flush=True)
        return outcome

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run, sorted(PARSERS)))
    print(f"\n{table(outcomes)}")
    return sum(bool(each.found) for each in outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", nargs="?", choices=sorted(PARSERS))
    parser.add_argument("--all", action="store_true", help="every parser, one after the other")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument(
        "--corpus",
        type=Path,
        default=Path(".tools/fuzz-corpus"),
        help="folder; what reaches new lines is kept there",
    )
    given = parser.parse_args()
    if given.all:
        sys.exit(every(given.seconds, given.corpus, given.at_once))
    if given.target is None:
        parser.error("name a parser, or --all")
    one(given.target, given.seconds, given.corpus / given.target.replace(" ", "-"))


if __name__ == "__main__":
    main()
