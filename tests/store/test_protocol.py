"""Keys of the store as strings."""

import pytest

from lattice.store.protocol import Key


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(Key("configmaps", "default", "web"), id="in a namespace"),
        pytest.param(Key("latticepools.lattice.dev", "", "eu-west"), id="cluster-scoped"),
        pytest.param(Key("namespaces", "", "a"), id="a namespace"),
    ],
)
def test_key_is_parsed_from_its_string(key: Key) -> None:
    assert Key.parse(str(key)) == key
