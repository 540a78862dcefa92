"""Many seeds, each in a process of its own, and what became of them: figures, violations, and how to see one again."""

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
from lattice.sim.invariants.checker import Checker, Violation
from lattice.sim.invariants.history import describe_change, node_of
from lattice.sim.planted_bugs.catalog import PLANTED_BUGS
from lattice.sim.world.event_loop import CURRENT_PROCESS
from lattice.sim.world.run import Run, run_seed
from lattice.sim.world.servers import authority, catalog

STORY_WINDOW_S = 25.0  # seconds before a violation that are told
MAX_STORY_LINES = 14  # lines of history that are told of one
CRITICAL_LOG_LEVEL = 50
DIGEST_LINE_WORDS = 2  # words of a line that tells the hash of a history
T = TypeVar("T")


class SeedSummary(msgspec.Struct, frozen=True):
    """One seed, as its process tells it."""

    seed: int
    digest: str
    options: str
    seconds: float  # of a processor
    figures: dict[str, int]
    faults: dict[str, int]
    violations: list[tuple[str, str, float, int]] = []
    story: list[str] = []
    planted: str = ""
    decisions_digest: str = ""  # of the history without messages and explanations

    @property
    def is_sound(self) -> bool:
        return not self.violations


def summarize_seed(seed: int, planted: str = "", *, with_decisions: bool = False) -> SeedSummary:
    """Runs it here and now; whoever calls is better in a process that ends after it."""
    began = time.process_time()
    if planted:
        PLANTED_BUGS[planted].plant()
    run = run_seed(seed)
    found = Checker(run).check()
    return SeedSummary(
        seed,
        run.digest,
        str(run.fault_plan),
        time.process_time() - began,
        _run_figures(run),
        dict(run.fault_counts),
        [(each.invariant, each.message, each.at, each.revision) for each in found],
        list(violation_trace(run, found[0])) if found else [],
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
                before = _bound_node(change.previous.value) if change.previous else ""
                bound += not before and bool(_bound_node(change.value))
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
    """The shortest stretch that tells how it came: faults before it, and what was written about those that it names."""
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
                f"{each.key} ({describe_change(each.previous.value if each.previous else None, each.value)})"
                for each in changes
            )
            lines.append(
                (
                    record.at,
                    f"revision {record.revision} by {record.actor} for {record.origin}{term}: {words}",
                )
            )
    lines += [
        (told.finished_at, f"client   {told.client}: {told.method} {told.key} {told.outcome}")
        for told in run.world.operations
        if told.key.name in names and told.finished_at <= violation.at
    ]
    lines.sort(key=lambda line: line[0])
    for at, words in lines[-MAX_STORY_LINES:]:
        yield f"{at:9.3f} s  {words}"


def warm_up() -> None:
    """What every run needs is made once, before the first process is split off."""
    authority()
    catalog()
    gc.collect()
    gc.freeze()


def fork_worker(work: Callable[[], object]) -> tuple[int, int]:
    """Begun in a process of its own, which ends without cleaning up: the pid and where its answer can be read."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        gc.disable()  # it lives for seconds; nothing of it is worth looking for
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL_LOG_LEVEL))
        with os.fdopen(writer, "wb") as answer:
            answer.write(msgspec.json.encode(work()))
        code = 0
    finally:
        os._exit(code)


def run_in_subprocess(work: Callable[[], object], kind: type[T]) -> T:
    """What it comes to in a process of its own, which leaves nothing behind here. Raises RuntimeError with what went wrong there."""
    warm_up()

    def told() -> tuple[str, object]:
        try:
            return "", work()
        except LatticeError as error:
            return str(error), None
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            return f"{type(error).__name__}: {error}", None

    said = _read_result(*fork_worker(told))
    wrong, value = (
        msgspec.json.decode(said, type=tuple[str, kind | None])  # type: ignore[valid-type]
        if said
        else ("its process ended without a word", None)
    )
    if wrong or value is None:
        raise RuntimeError(wrong)
    return value


def _read_result(pid: int, reader: int) -> bytes:
    with os.fdopen(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def run_seeds(
    seeds: Iterable[int], workers: int = 2, planted: str = "", *, with_decisions: bool = False
) -> Iterator[SeedSummary]:
    """Each as it ends; so many at once."""
    warm_up()
    waiting = iter(seeds)
    running: dict[int, tuple[int, int, bytearray]] = {}  # reader -> pid, seed, what it said
    while True:
        while len(running) < workers and (seed := next(waiting, None)) is not None:
            pid, reader = fork_worker(
                lambda seed=seed: summarize_seed(seed, planted, with_decisions=with_decisions)  # type: ignore[misc]
            )
            running[reader] = (pid, seed, bytearray())
        if not running:
            return
        for reader in select.select(list(running), [], [])[0]:
            piece = os.read(reader, 1 << 20)
            running[reader][2].extend(piece)
            if piece:
                continue
            pid, seed, said = running.pop(reader)
            os.close(reader)
            os.waitpid(pid, 0)
            yield _decode_summary(bytes(said), seed)


def replay_seed(seed: int, planted: str = "", *, with_log: bool = False) -> SeedSummary:
    """One seed, in a process of its own."""
    warm_up()

    def told() -> SeedSummary:
        if with_log:
            structlog.configure(
                wrapper_class=structlog.make_filtering_bound_logger(0), processors=[_log_line]
            )
        return summarize_seed(seed, planted)

    return _decode_summary(_read_result(*fork_worker(told)), seed)


def _log_line(_: object, level: str, said: Any) -> str:
    process, words = CURRENT_PROCESS.get(), {name: value for name, value in said.items() if name != "event"}
    now = asyncio.get_running_loop().time() if asyncio._get_running_loop() else 0.0
    return f"{now:9.3f} s  {process.name if process else '':20} {level:8} {said.get('event')} {words or ''}"


def _decode_summary(said: bytes, seed: int) -> SeedSummary:
    if said:
        return msgspec.json.decode(said, type=SeedSummary)
    return SeedSummary(seed, "", "", 0.0, {}, {}, [("I-00", "its process ended without a word", 0.0, 0)])


def violation_lines(summary: SeedSummary) -> Iterator[str]:
    """What is said of a seed that is not sound."""
    yield f"seed {summary.seed}: {len(summary.violations)} violations; {summary.options}"
    for number, count in sorted(Counter(each[0] for each in summary.violations).items()):
        first = next(each for each in summary.violations if each[0] == number)
        more = f" (and {count - 1} more)" if count > 1 else ""
        yield f"  {number} at {first[2]:.3f} s, revision {first[3]}: {first[1]}{more}"
    yield from (f"    {line}" for line in summary.story)
    yield f"  see it again: lattice sim replay {summary.seed}{f' --planted {summary.planted}' if summary.planted else ''}"


def totals_lines(summaries: Sequence[SeedSummary]) -> Iterator[str]:
    """What all of them came to, in two lines: figures, and faults by kind."""
    figures: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for each in summaries:
        figures.update(each.figures)
        faults.update(each.faults)
    violations = sum(len(each.violations) for each in summaries)
    counts = ", ".join(f"{count:,} {name}" for name, count in figures.items())
    seconds = sum(each.seconds for each in summaries) / max(len(summaries), 1)
    yield f"{len(summaries):,} runs, {violations:,} violations, {counts}; {seconds:.2f} seconds of a processor each"
    yield "faults: " + (
        ", ".join(f"{name} {count:,}" for name, count in sorted(faults.items()) if count) or "none"
    )


def digests_in_new_process(first: int, count: int, workers: int) -> dict[int, str]:
    """The same seeds in another interpreter, in which strings hash to something else: the hash of each history."""
    words = [
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
    hashed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    said = subprocess.run(
        [sys.executable, "-m", "lattice", *words],
        env={**os.environ, "PYTHONHASHSEED": hashed},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    ).stdout
    found = (line.split() for line in said.splitlines())
    return {int(each[0]): each[1] for each in found if len(each) == DIGEST_LINE_WORDS and each[0].isdigit()}
