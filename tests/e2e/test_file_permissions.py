"""Files with keys and tokens are readable only by their owner, whatever the mode of the folder."""

import stat
from pathlib import Path

import pytest
from build.servers import running_server


@pytest.mark.xdist_group("private")
def test_server_files_are_readable_only_by_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with running_server(folder) as server:
        server.lattice("get", "pools")
        readable = [
            path.name
            for path in folder.rglob("*")
            if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077
        ]
    assert readable == []
