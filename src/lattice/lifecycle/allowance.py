"""How many more of a service may be stopped to make room for others?"""

from collections.abc import Callable

from lattice.lifecycle.node_health import Standing


class Allowance(dict[str, int]):
    """By service (namespace/service), of those that were asked about: looked up once, then counted down, until all is cleared.

    `source` says None of one that is not limited. Never empty as a truth value: there is always more to ask about.
    """

    def __init__(self, source: Callable[[str], int | None]) -> None:
        super().__init__()
        self._source = source

    def __bool__(self) -> bool:
        return True

    def __contains__(self, service: object) -> bool:
        if not isinstance(service, str) or not service:
            return False
        if not super().__contains__(service):
            limit = self._source(service)
            if limit is None:
                return False
            self[service] = limit
        return True


def may_displace(found: Standing) -> int:
    """Never so many that fewer are left than the service must keep; none while its replicas are being replaced or removed."""
    return 0 if found.is_changing else max(0, found.available - found.least)
