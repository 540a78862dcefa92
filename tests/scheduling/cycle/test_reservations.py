"""Tests of reservations: capacity is held until a reservation is confirmed, released or expired."""

import pytest
from build.property_settings import many
from build.small_clusters import ask, check_capacity, nodes, nodes_by_workload
from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cycle.reservations import Reservation, ReservationRejection, Reservations


def held(book: Reservations, name: str, cpu: int = 100, now: float = 0.0) -> Reservation:
    reservation = book.reserve(ask(book.table, name, cpu), 0, now)
    assert isinstance(reservation, Reservation)
    return reservation


@pytest.mark.parametrize(
    ("now", "expired"),
    [
        pytest.param(129.9, False, id="before its time"),
        pytest.param(130.0, True, id="at its time: the bound is inclusive"),
        pytest.param(131.0, True, id="after its time"),
    ],
)
def test_expiry_is_inclusive(now: float, expired: bool) -> None:
    book = Reservations(nodes(1000), timeout=30)
    reservation = held(book, "a", now=100.0)
    assert reservation.is_expired(now) is expired
    assert book.expire(now) == ([reservation] if expired else [])
    assert nodes_by_workload(book.table) == ({} if expired else {"a": "n0"})


def test_reservation_records_its_resources() -> None:
    book = Reservations(nodes(1000, gpus=(2,)), holder="s1")
    reservation = book.reserve(ask(book.table, "a", 250, gpu=500), 0, 5.0)
    assert reservation == Reservation(
        "s1-1", "default/a", "n0", (("cpu", 250), ("workloads", 1), ("gpu", 500)), 35.0
    )


def test_reservation_ids_are_unique() -> None:
    books = [Reservations(nodes(1000), holder=name) for name in ("a", "b")]
    assert len({held(book, f"w{number}", 10).id for book in books for number in range(20)}) == 40


def test_confirm_binds_the_placement() -> None:
    book = Reservations(nodes(1000))
    reservation = held(book, "a")
    assert book.confirm(reservation.id, 29.9) == reservation
    assert book.expire(1e9) == []
    assert not book.release(reservation.id)
    assert book.table.placements["default/a"].state == "bound"


def test_confirm_after_expiry_is_rejected_and_released() -> None:
    book = Reservations(nodes(1000))
    reservation = held(book, "a")
    assert book.confirm(reservation.id, 30.0) == ReservationRejection(
        "default/a", f"reservation {reservation.id} expired 0.0 s ago"
    )
    assert nodes_by_workload(book.table) == {}
    assert "not found: released, confirmed or never created" in book.confirm(reservation.id, 0.0).reason  # type: ignore[union-attr]


def test_release_is_idempotent() -> None:
    book = Reservations(nodes(1000))
    reservation = held(book, "a", 600)
    assert book.release(reservation.id)
    again = held(book, "a", 600)
    assert not book.release(reservation.id)
    assert nodes_by_workload(book.table) == {"a": "n0"}
    assert book.get(again.id) == again


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        pytest.param(
            {"cpu": 900}, {"cpu": 200}, "node n0 has 100m cpu free, 200m needed", id="too little cpu"
        ),
        pytest.param(
            {"gpu": 1000}, {"gpu": 500}, "node n0 has 0 of one gpu free, 500m needed", id="no part of a GPU"
        ),
        pytest.param(
            {"host_ports": ((80, "TCP"),)},
            {"host_ports": ((80, "TCP"),)},
            "port 80/TCP of node n0 is in use",
            id="port taken",
        ),
    ],
)
def test_reserve_without_capacity_is_rejected(
    first: dict[str, object], second: dict[str, object], why: str
) -> None:
    book = Reservations(nodes(1000, gpus=(1,)))
    assert isinstance(book.reserve(ask(book.table, "a", **first), 0, 0.0), Reservation)  # type: ignore[arg-type]
    assert book.reserve(ask(book.table, "b", **second), 0, 0.0) == ReservationRejection("default/b", why)  # type: ignore[arg-type]


def test_workload_is_reserved_once_and_not_on_removed_node() -> None:
    book = Reservations(nodes(1000, 1000))
    reservation = held(book, "a")
    assert book.reserve(ask(book.table, "a"), 1, 0.0) == ReservationRejection(
        "default/a", "resources are already reserved on node n0"
    )
    book.table.remove_node("n0")
    assert isinstance(book.confirm(reservation.id, 1.0), ReservationRejection)
    assert book.reserve(ask(book.table, "b"), 0, 0.0) == ReservationRejection(
        "default/b", "the node was deleted"
    )


def test_expired_reservation_keeps_later_placement() -> None:
    book = Reservations(nodes(1000))
    old = held(book, "a", now=0.0)
    book.table.forget("default/a")
    held(book, "a", now=20.0)
    assert book.expire(30.0) == [old]
    assert nodes_by_workload(book.table) == {"a": "n0"}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "confirm", "release", "expire"]),
        st.integers(0, 7),
        st.integers(0, 2),
        st.integers(0, 700),
    ),
    max_size=30,
)


@many
@given(STEPS)
def test_capacity_is_never_exceeded_in_any_sequence(steps: list[tuple[str, int, int, int]]) -> None:
    book = Reservations(nodes(1000, 500, 800, gpus=(1, 0, 2)), timeout=5)
    known: list[Reservation] = []
    for now, (what, which, row, size) in enumerate(steps):
        gpu = {"gpu": (size % 3) * 500} if which % 2 else {}
        if what == "reserve":
            made = book.reserve(ask(book.table, f"w{which}", size + 1, **gpu), row, now)  # type: ignore[arg-type]
            known += [made] if isinstance(made, Reservation) else []
        elif what == "expire":
            assert all(each.expires_at <= now for each in book.expire(now))
        elif known:
            chosen = known[which % len(known)]
            if what == "confirm":
                book.confirm(chosen.id, now)
            else:
                book.release(chosen.id)
        check_capacity(book.table)
    for each in known:
        book.release(each.id)
    assert all(each.state == "bound" for each in book.table.placements.values())
