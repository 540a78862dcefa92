"""Logs are words on a terminal and JSON elsewhere."""

import json
import os
import pty
import subprocess
import sys

import pytest

from lattice.cli.commands.server import render_in_words

SCRIPT = (
    "import structlog; from lattice.cli.commands.server import configure_logging; configure_logging(verbose=False);"
    "structlog.get_logger().info('connected', node='rack-1', server='https://a:1')"
)


def test_log_of_a_terminal_is_words_and_of_a_pipe_json():
    command = [sys.executable, "-c", SCRIPT]
    piped = subprocess.run(command, capture_output=True, check=True, text=True).stderr
    assert json.loads(piped)["event"] == "connected"
    leader, follower = pty.openpty()
    try:
        subprocess.run(command, stderr=follower, check=True)
        shown = os.read(leader, 1000).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert shown.strip()[8:] == " connected: node rack-1, server https://a:1"


@pytest.mark.parametrize(
    ("event", "line"),
    [
        ({"event": "stopping", "level": "info", "timestamp": "2026-01-01T20:15:01.5Z"}, "20:15:01 stopping"),
        (
            {
                "event": "lost",
                "level": "warning",
                "timestamp": "2026-01-01T20:15:01Z",
                "node": "a",
                "why": "",
            },
            "20:15:01 lost (warning): node a",
        ),
        ({"event": "failed", "level": "error", "exception": "Traceback"}, " failed (error)\nTraceback"),
    ],
    ids=["event alone", "warning with an empty field", "error with its traceback"],
)
def test_line_in_words(event, line):
    assert render_in_words(None, "info", event) == line
