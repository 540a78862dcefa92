"""An agent without a session: adopts the instances of its state file, starts the given ones, and runs until it is killed.

`python small_agent.py FOLDER CONTACT_EVERY [SPEC...]`: specs are JSON; CONTACT_EVERY 0 means no further contact with the control plane.
"""

import asyncio
import sys
from pathlib import Path

import msgspec

from lattice.agent.host.runtime_protocol import RunSpec
from lattice.agent.host.watchdog_client import WatchdogClient
from lattice.agent.runtimes.process import ProcessRuntime
from lattice.agent.state_file import StateFile
from lattice.clock import SystemClock


async def main(folder: Path, contact_every: float, specs: list[RunSpec]) -> None:
    clock, state = SystemClock(), StateFile(folder)
    runtime = ProcessRuntime(folder, state, clock, WatchdogClient(folder, clock))
    for record in state.state.records:
        await runtime.adopt(record)
    if specs:
        await runtime.record_contact(clock.monotonic())
    for spec in specs:
        await runtime.start(spec)
    print(msgspec.json.encode(await runtime.list()).decode(), flush=True)
    while True:
        await clock.sleep(contact_every or 3600)
        await runtime.record_contact(clock.monotonic())


if __name__ == "__main__":
    asyncio.run(
        main(
            Path(sys.argv[1]),
            float(sys.argv[2]),
            [msgspec.json.decode(word, type=RunSpec) for word in sys.argv[3:]],
        )
    )
