"""A stub agent for providers: holds the lock of its folder, runs one process, and stops it on SIGTERM.

`--clear` kills the process of a killed agent. With DEAF in its environment the agent ignores SIGTERM.
"""

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

words = sys.argv[1:]
folder = Path(words[words.index("--data-dir") + 1])
state = folder / "state.json"


def end_work() -> None:
    os.kill(json.loads(state.read_text())["pid"], signal.SIGKILL)
    state.unlink()


if "--clear" in words:
    end_work()
    sys.exit()
if "DEAF" in os.environ:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: (end_work(), sys.exit(0)))  # type: ignore[func-returns-value]
folder.mkdir(exist_ok=True)
lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
work = subprocess.Popen(["sleep", "1000"], start_new_session=True, close_fds=True)
draft = folder / "draft.json"
draft.write_text(json.dumps({"pid": work.pid}))
draft.rename(state)
while True:
    signal.pause()
