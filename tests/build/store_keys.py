"""Keys of pods, for tests of stores."""

from lattice.store.protocol import Key

PODS = "pods"


def pod(path: str) -> Key:
    """The key of `namespace/name`; a bare name is in namespace `a`."""
    namespace, _, name = path.partition("/") if "/" in path else ("a", "", path)
    return Key(PODS, namespace, name)
