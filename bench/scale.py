"""Sizes of the benchmark: full, or small to check that everything runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    puts: int  # durable puts with many committers
    single_puts: int  # one after the other
    etcd_puts: int
    etcd_bulk_puts: int
    memory_puts: int
    creates: int
    gets: int
    objects: int  # in the long list
    lists: int
    watchers: int
    changes: int
    starts: int


FULL = Scale(30_000, 3_000, 10_000, 60_000, 50_000, 6_000, 20_000, 10_000, 8, 200, 500, 10)
QUICK = Scale(1_000, 100, 500, 1_000, 1_000, 200, 500, 600, 2, 10, 20, 2)
