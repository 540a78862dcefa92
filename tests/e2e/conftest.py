"""One running server per test file, and a raw HTTPS client of it as an administrator; a file may replace either."""

from collections.abc import Iterator

import pytest
from build.servers import Server, running_server
from build.wire import Wire


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module")
def wire(server: Server) -> Wire:
    return Wire(server.kubeconfig)
