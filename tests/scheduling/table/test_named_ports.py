"""Tests of named ports: fixed numbers are kept, the others are allocated, and allocations round-trip."""

from hypothesis import given
from hypothesis import strategies as st

from lattice.kinds.container import Container, Port
from lattice.scheduling.table.port_allocator import allocated_ports, dynamic_ports, named_ports

PORTS = st.lists(
    st.tuples(st.sampled_from(["http", "admin", "grpc"]), st.none() | st.integers(1, 99)),
    unique_by=lambda each: each[0],
)


@given(given=st.dictionaries(st.sampled_from(["a", "b", "c"]), PORTS, max_size=3))
def test_named_ports_are_unique_and_round_trip(
    given: dict[str, list[tuple[str, int | None]]],
) -> None:
    containers = {
        name: Container(command=("x",), ports=tuple(Port(name=each, port=number) for each, number in ports))
        for name, ports in given.items()
    }
    names = named_ports(containers)
    assert len({name for name, _ in names}) == len(names)
    numbers = tuple(range(30000, 30000 + sum(fixed is None for _, fixed in names)))
    made = allocated_ports(containers, numbers)
    assert len(made) == len(names)
    assert all(made[name] == fixed for name, fixed in names if fixed is not None)
    assert dynamic_ports(containers, made) == numbers


def test_duplicate_port_name_is_prefixed_with_container() -> None:
    containers = {name: Container(command=("x",), ports=(Port(name="http"),)) for name in ("web", "proxy")}
    assert allocated_ports(containers, (30000, 30001)) == {"web.http": 30000, "proxy.http": 30001}
