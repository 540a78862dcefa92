"""The server process imports no unneeded modules, and its default trust store is empty."""

import os
import subprocess
import sys

import pytest

from lattice.cli.commands.server import TRUST_STORE_VARIABLES, _empty_trust_store

# Lattice does not depend on rich, so stand-ins play an environment that has rich.
LOGGING = """
import pathlib, sys, tempfile
folder = pathlib.Path(tempfile.mkdtemp())
(folder / "rich").mkdir()
(folder / "rich" / "__init__.py").touch()
(folder / "rich" / "console.py").write_text("class Console: pass")
(folder / "rich" / "traceback.py").write_text("class Traceback: pass")
sys.path.insert(0, str(folder))
from lattice.cli.commands.server import configure_logging
configure_logging(verbose=False)
import lattice.app.serve
print([name for name in ("rich", "pygments", "greenlet") if name in sys.modules])
import rich.console
"""
AUTHORITIES = """
from lattice.cli.commands.server import _empty_trust_store
with _empty_trust_store():
    from aiohttp.connector import _SSL_CONTEXT_VERIFIED as theirs
print(theirs.verify_mode.name, theirs.check_hostname, len(theirs.get_ca_certs()))
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        pytest.param(LOGGING, "[]", id="logging does not import rich"),
        pytest.param(AUTHORITIES, "CERT_REQUIRED True 0", id="default trust store is empty"),
    ],
)
def test_server_imports(code: str, printed: str) -> None:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == [printed]


def test_empty_trust_store_restores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    file, folder = TRUST_STORE_VARIABLES
    monkeypatch.setenv(file, "/some/file")
    monkeypatch.delenv(folder, raising=False)
    with _empty_trust_store():
        assert [os.environ[name] for name in TRUST_STORE_VARIABLES] == [os.devnull] * 2
    assert os.environ[file] == "/some/file"
    assert folder not in os.environ
