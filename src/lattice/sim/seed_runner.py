"""Runs seeds in separate processes and reports figures, violations and the command that replays a seed."""

import asyncio
import gc
import os
import re
import select
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from lattice.errors import LatticeError
from lattice.kinds.workload import LatticeWorkload
from lattice.process_tuning import collect_and_freeze
from lattice.sim.invariants.checker import Checker, Violation
from lattice.sim.invariants.history import describe_change, node_of
from lattice.sim.planted_bugs.catalog import PLANTED_BUGS
from lattice.sim.world.event_loop import CURRENT_PROCESS
from lattice.sim.world.run import Run, run_seed
from lattice.sim.world.servers import authority, catalog

# The trace shows the faults in this time before a violation.
STORY_WINDOW_S = 25.0
MAX_STORY_LINES = 14
CRITICAL_LOG_LEVEL = 50
# Number of words in an output line with a seed and a digest.
DIGEST_LINE_WORDS = 2
T = TypeVar("T")


class SeedSummary(msgspec.Struct, frozen=True):
    """Result of a seed, as sent by the seed's process."""

    seed: int
    digest: str
    options: str
    # Processor time of the run.
    seconds: float
    figures: dict[str, int]
    faults: dict[str, int]
    violations: list[tuple[str, str, float, int]] = []
    story: list[str] = []
    planted: str = ""
    # Digest of the history without messages and explanations.
    decisions_digest: str = ""

    @property
    def is_sound(self) -> bool:
        return not self.violations


def summarize_seed(seed: int, planted: str = "", *, with_decisions: bool = False) -> SeedSummary:
    """Run a seed in the current process; a planted bug stays in the code, so the process should end
    afterwards."""
    started = time.process_time()
    if planted:
        PLANTED_BUGS[planted].plant()
    run = run_seed(seed)
    violations = Checker(run).check()
    return SeedSummary(
        seed,
        run.digest,
        str(run.fault_plan),
        time.process_time() - started,
        _run_figures(run),
        dict(run.fault_counts),
        [
            (violation.invariant, violation.message, violation.at, violation.revision)
            for violation in violations
        ],
        list(violation_trace(run, violations[0])) if violations else [],
        planted,
        run.decisions_digest if with_decisions else "",
    )


def _run_figures(run: Run) -> dict[str, int]:
    store = run.world.store
    bound = 0
    for record in store.history:
        for change in record.changes:
            if (
                change.key.resource == LatticeWorkload.resource.id
                and change.value
                and b'"binding"' in change.value
            ):
                previous_node = _bound_node(change.previous.value) if change.previous else ""
                bound += not previous_node and bool(_bound_node(change.value))
    return {
        "virtual seconds": round(run.world.loop.time()),
        "revisions": len(store.history),
        "leader changes": max(0, len(store.elections) - 1),
        "bindings": bound,
        "operations": len(run.world.operations),
        "faults": sum(run.fault_counts.values()),
    }


def _bound_node(value: bytes) -> str:
    return node_of(_decoder.decode(value))


_decoder = msgspec.json.Decoder(LatticeWorkload)


def violation_trace(run: Run, violation: Violation) -> Iterator[str]:
    """The history that explains a violation: recent faults, and commits and operations of the objects that
    the message names."""
    names = {
        word.rpartition("/")[2].strip(".,:;()")
        for word in re.findall(r"[a-z0-9]+(?:[-/][a-z0-9-]+)+", violation.message)
    }
    lines = [
        (at, f"fault    {words}")
        for at, words in run.world.fault_log
        if violation.at - STORY_WINDOW_S <= at <= violation.at
    ]
    for record in run.world.store.history:
        if violation.revision and record.revision > violation.revision:
            break
        changes = [change for change in record.changes if change.key.name in names]
        if changes:
            term = f" term {record.term.number}" if record.term else ""
            words = ", ".join(
                f"{change.key}"
                f" ({describe_change(change.previous.value if change.previous else None, change.value)})"
                for change in changes
            )
            lines.append(
                (
                    record.at,
                    f"revision {record.revision} by {record.actor} for {record.origin}{term}: {words}",
                )
            )
    lines += [
        (
            operation.finished_at,
            f"client   {operation.client}: {operation.method} {operation.key} {operation.outcome}",
        )
        for operation in run.world.operations
        if operation.key.name in names and operation.finished_at <= violation.at
    ]
    lines.sort(key=lambda line: line[0])
    for at, words in lines[-MAX_STORY_LINES:]:
        yield f"{at:9.3f} s  {words}"


def warm_up() -> None:
    """Build shared objects once, before the first fork."""
    authority()
    catalog()
    collect_and_freeze()


def fork_worker(work: Callable[[], object]) -> tuple[int, int]:
    """Run `work` in a forked process that exits without cleanup; returns the process id and the descriptor
    for the result."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # A fork shares the imported modules.
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        # A worker lives for seconds, so collection does not pay.
        gc.disable()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL_LOG_LEVEL))
        with os.fdopen(writer, "wb") as answer:
            answer.write(msgspec.json.encode(work()))
        code = 0
    finally:
        # Skips cleanup, because exit handlers belong to the parent process.
        os._exit(code)


def run_in_subprocess(work: Callable[[], object], kind: type[T]) -> T:
    """The result of `work` in a forked process. Raises RuntimeError with the error of the process."""
    warm_up()

    def attempt() -> tuple[str, object]:
        try:
            return "", work()
        except LatticeError as error:
            return str(error), None
        except Exception as failure:  # noqa: BLE001 - reported to the parent process
            return f"{type(failure).__name__}: {failure}", None

    result = _read_result(*fork_worker(attempt))
    error, value = (
        msgspec.json.decode(result, type=tuple[str, kind | None])  # type: ignore[valid-type]
        if result
        else ("the process ended without a result", None)
    )
    if error or value is None:
        raise RuntimeError(error)
    return value


def _read_result(pid: int, reader: int) -> bytes:
    with os.fdopen(reader, "rb") as answer:
        result = answer.read()
    os.waitpid(pid, 0)
    return result


def run_seeds(
    seeds: Iterable[int], workers: int = 2, planted: str = "", *, with_decisions: bool = False
) -> Iterator[SeedSummary]:
    """Summaries of the seeds in the order of completion, with `workers` processes in parallel."""
    warm_up()
    pending = iter(seeds)
    # Descriptor -> process id, seed, received bytes.
    running: dict[int, tuple[int, int, bytearray]] = {}
    while True:
        while len(running) < workers and (seed := next(pending, None)) is not None:
            pid, reader = fork_worker(
                lambda seed=seed: summarize_seed(seed, planted, with_decisions=with_decisions)  # type: ignore[misc]
            )
            running[reader] = (pid, seed, bytearray())
        if not running:
            return
        # Read results as they come, because a full pipe would block its worker.
        for reader in select.select(list(running), [], [])[0]:
            chunk = os.read(reader, 1 << 20)
            running[reader][2].extend(chunk)
            if chunk:
                continue
            pid, seed, result = running.pop(reader)
            os.close(reader)
            os.waitpid(pid, 0)
            yield _decode_summary(bytes(result), seed)


def replay_seed(seed: int, planted: str = "", *, with_log: bool = False) -> SeedSummary:
    """Run a seed in a forked process, with the log on request."""
    warm_up()

    def summarize() -> SeedSummary:
        if with_log:
            structlog.configure(
                wrapper_class=structlog.make_filtering_bound_logger(0), processors=[_log_line]
            )
        return summarize_seed(seed, planted)

    return _decode_summary(_read_result(*fork_worker(summarize)), seed)


def _log_line(_: object, level: str, event: Any) -> str:
    process, fields = CURRENT_PROCESS.get(), {name: value for name, value in event.items() if name != "event"}
    now = asyncio.get_running_loop().time() if asyncio._get_running_loop() else 0.0
    return f"{now:9.3f} s  {process.name if process else '':20} {level:8} {event.get('event')} {fields or ''}"


def _decode_summary(result: bytes, seed: int) -> SeedSummary:
    if result:
        return msgspec.json.decode(result, type=SeedSummary)
    return SeedSummary(seed, "", "", 0.0, {}, {}, [("I-00", "the process ended without a result", 0.0, 0)])


def violation_lines(summary: SeedSummary) -> Iterator[str]:
    """The report of a seed with violations."""
    yield f"seed {summary.seed}: {len(summary.violations)} violations; {summary.options}"
    for number, count in sorted(Counter(violation[0] for violation in summary.violations).items()):
        first = next(violation for violation in summary.violations if violation[0] == number)
        suffix = f" (and {count - 1} more)" if count > 1 else ""
        yield f"  {number} at {first[2]:.3f} s, revision {first[3]}: {first[1]}{suffix}"
    yield from (f"    {line}" for line in summary.story)
    option = f" --planted {summary.planted}" if summary.planted else ""
    yield f"  replay with: lattice sim replay {summary.seed}{option}"


def totals_lines(summaries: Sequence[SeedSummary]) -> Iterator[str]:
    """Totals of all runs in two lines: figures, and faults by kind."""
    figures: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for summary in summaries:
        figures.update(summary.figures)
        faults.update(summary.faults)
    violations = sum(len(summary.violations) for summary in summaries)
    counts = ", ".join(f"{count:,} {name}" for name, count in figures.items())
    seconds = sum(summary.seconds for summary in summaries) / max(len(summaries), 1)
    yield (f"{len(summaries):,} runs, {violations:,} violations, {counts}; {seconds:.2f} CPU seconds each")
    yield "faults: " + (
        ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items()) if count) or "none"
    )


def digests_in_new_process(first: int, count: int, workers: int) -> dict[int, str]:
    """Digests of the same seeds in a new interpreter with a different hash seed for strings."""
    arguments = [
        "sim",
        "run",
        "--first",
        str(first),
        "--seeds",
        str(count),
        "--workers",
        str(workers),
        "--digests",
    ]
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    output = subprocess.run(
        [sys.executable, "-m", "lattice", *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    lines = (line.split() for line in output.splitlines())
    return {
        int(fields[0]): fields[1]
        for fields in lines
        if len(fields) == DIGEST_LINE_WORDS and fields[0].isdigit()
    }
