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
from lattice.sim.invariants.differing import differing
from lattice.sim.world.event_loop import PROCESS
from lattice.sim.invariants.history import node_of
from lattice.sim.planted_bugs.catalog import PLANTED
from lattice.sim.world.run import Run, run_seed
from lattice.sim.world.servers import authority, catalog

BEFORE = 25.0  # seconds before a violation that are told
MOST = 14  # lines of history that are told of one
CRITICAL = 50
DIGEST_LINE = 2  # words of a line that tells the hash of a history
T = TypeVar("T")


class Summary(msgspec.Struct, frozen=True):
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

    @property
    def is_sound(self) -> bool:
        return not self.violations


def summary_of(seed: int, planted: str = "") -> Summary:
    """Runs it here and now; whoever calls is better in a process that ends after it."""
    began = time.process_time()
    if planted:
        PLANTED[planted].plant()
    run = run_seed(seed)
    found = Checker(run).check()
    return Summary(
        seed,
        run.digest,
        str(run.swarm),
        time.process_time() - began,
        _figures(run),
        dict(run.struck),
        [(each.number, each.words, each.at, each.revision) for each in found],
        list(story(run, found[0])) if found else [],
        planted,
    )


def _figures(run: Run) -> dict[str, int]:
    store = run.world.store
    bound = 0
    for record in store.history:
        for change in record.changes:
            if (
                change.key.resource == LatticeWorkload.resource.id
                and change.value
                and b'"binding"' in change.value
            ):
                before = _bound(change.previous.value) if change.previous else ""
                bound += not before and bool(_bound(change.value))
    return {
        "virtual seconds": round(run.world.loop.time()),
        "revisions": len(store.history),
        "leader changes": max(0, len(store.elections) - 1),
        "bindings": bound,
        "operations": len(run.world.told),
        "faults": sum(run.struck.values()),
    }


def _bound(value: bytes) -> str:
    return node_of(_decoder.decode(value))


_decoder = msgspec.json.Decoder(LatticeWorkload)


def story(run: Run, violation: Violation) -> Iterator[str]:
    """The shortest stretch that tells how it came: faults before it, and what was written about those that it names."""
    names = {
        word.rpartition("/")[2].strip(".,:;()")
        for word in re.findall(r"[a-z0-9]+(?:[-/][a-z0-9-]+)+", violation.words)
    }
    lines = [
        (at, f"fault    {words}")
        for at, words in run.world.notes
        if violation.at - BEFORE <= at <= violation.at
    ]
    for record in run.world.store.history:
        if violation.revision and record.revision > violation.revision:
            break
        changes = [change for change in record.changes if change.key.name in names]
        if changes:
            term = f" term {record.term.number}" if record.term else ""
            words = ", ".join(
                f"{each.key} ({differing(each.previous.value if each.previous else None, each.value)})"
                for each in changes
            )
            lines.append(
                (
                    record.at,
                    f"revision {record.revision} by {record.actor} for {record.origin}{term}: {words}",
                )
            )
    lines += [
        (told.told_at, f"client   {told.client}: {told.method} {told.key} {told.outcome}")
        for told in run.world.told
        if told.key.name in names and told.told_at <= violation.at
    ]
    lines.sort(key=lambda line: line[0])
    for at, words in lines[-MOST:]:
        yield f"{at:9.3f} s  {words}"


def warm_up() -> None:
    """What every run needs is made once, before the first process is split off."""
    authority()
    catalog()
    gc.collect()
    gc.freeze()


def isolated(work: Callable[[], object]) -> tuple[int, int]:
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
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
        with os.fdopen(writer, "wb") as answer:
            answer.write(msgspec.json.encode(work()))
        code = 0
    finally:
        os._exit(code)


def apart(work: Callable[[], object], kind: type[T]) -> T:
    """What it comes to in a process of its own, which leaves nothing behind here. Raises RuntimeError with what went wrong there."""
    warm_up()

    def told() -> tuple[str, object]:
        try:
            return "", work()
        except LatticeError as error:
            return str(error), None
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            return f"{type(error).__name__}: {error}", None

    said = _answer(*isolated(told))
    wrong, value = (
        msgspec.json.decode(said, type=tuple[str, kind | None])
        if said
        else ("its process ended without a word", None)
    )  # type: ignore[valid-type]
    if wrong or value is None:
        raise RuntimeError(wrong)
    return value


def _answer(pid: int, reader: int) -> bytes:
    with os.fdopen(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def run_many(seeds: Iterable[int], workers: int = 2, planted: str = "") -> Iterator[Summary]:
    """Each as it ends; so many at once."""
    warm_up()
    waiting = iter(seeds)
    running: dict[int, tuple[int, int, bytearray]] = {}  # reader -> pid, seed, what it said
    while True:
        while len(running) < workers and (seed := next(waiting, None)) is not None:
            pid, reader = isolated(lambda seed=seed: summary_of(seed, planted))  # type: ignore[misc]
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
            yield _read(bytes(said), seed)


def replayed(seed: int, planted: str = "", *, with_log: bool = False) -> Summary:
    """One seed, in a process of its own."""
    warm_up()

    def told() -> Summary:
        if with_log:
            structlog.configure(
                wrapper_class=structlog.make_filtering_bound_logger(0), processors=[_with_time]
            )
        return summary_of(seed, planted)

    return _read(_answer(*isolated(told)), seed)


def _with_time(_: object, level: str, said: Any) -> str:
    process, words = PROCESS.get(), {name: value for name, value in said.items() if name != "event"}
    now = asyncio.get_running_loop().time() if asyncio._get_running_loop() else 0.0
    return f"{now:9.3f} s  {process.name if process else '':20} {level:8} {said.get('event')} {words or ''}"


def _read(said: bytes, seed: int) -> Summary:
    if said:
        return msgspec.json.decode(said, type=Summary)
    return Summary(seed, "", "", 0.0, {}, {}, [("I-00", "its process ended without a word", 0.0, 0)])


def shown(summary: Summary) -> Iterator[str]:
    """What is said of a seed that is not sound."""
    yield f"seed {summary.seed}: {len(summary.violations)} violations; {summary.options}"
    for number, count in sorted(Counter(each[0] for each in summary.violations).items()):
        first = next(each for each in summary.violations if each[0] == number)
        more = f" (and {count - 1} more)" if count > 1 else ""
        yield f"  {number} at {first[2]:.3f} s, revision {first[3]}: {first[1]}{more}"
    yield from (f"    {line}" for line in summary.story)
    yield f"  see it again: lattice sim replay {summary.seed}{f' --planted {summary.planted}' if summary.planted else ''}"


def figures_of(summaries: Sequence[Summary]) -> Iterator[str]:
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


def digests_elsewhere(first: int, count: int, workers: int) -> dict[int, str]:
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
    return {int(each[0]): each[1] for each in found if len(each) == DIGEST_LINE and each[0].isdigit()}
