"""The specification of node scheduling by demand: the code that meets a demand, and the test that proves it."""

from docs.spec003.bind import BIND
from docs.spec003.feasibility import FEASIBILITY
from docs.spec003.filter import FILTER
from docs.spec003.gaps import LONG_TERM, MISSING, NOW, PARTIAL, SOON
from docs.spec003.overview import OVERVIEW
from docs.spec003.resources import RESOURCES
from docs.spec003.scheduler import SCHEDULER
from docs.spec003.score import SCORE
from docs.spec003.select import SELECT
from docs.specification import Section, Specification

SPEC003 = Specification(
    "003",
    "node scheduling",
    (
        Section("Overview", OVERVIEW),
        Section("1. scheduling.resources", RESOURCES),
        Section("2. scheduling.filter", FILTER),
        Section("3. scheduling.score", SCORE),
        Section("4. scheduling.select", SELECT),
        Section("5. scheduling.bind", BIND),
        Section("6. scheduling.feasibility", FEASIBILITY),
        Section("7. scheduling.scheduler", SCHEDULER),
        Section("Gaps: fully missing", MISSING),
        Section("Gaps: partial", PARTIAL),
        Section("Recommendations: immediate", NOW),
        Section("Recommendations: short-term", SOON),
        Section("Recommendations: long-term", LONG_TERM),
    ),
)

__all__ = ["SPEC003"]
