"""Runs the linear solver (HiGHS) on a matrix: one thread, one seed, no output; the time limit is its own affair."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lattice.placement.optimise.lp_matrix import MAX_COEFFICIENT, Column, Matrix

if TYPE_CHECKING:
    import highspy

BOUND_TOLERANCE = 1e-6  # of a bound: what floating point may have added to it


OPTIONS: dict[str, bool | int | float | str] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
}


class SolverUnavailable(Exception):
    """The solver is not installed, or gave up."""


@dataclass(frozen=True, slots=True)
class SolverResult:
    """Values by column, none if it found nothing; `bound` holds for every answer, None if there is no answer at all."""

    values: Mapping[Column, float]
    bound: int | None
    finished: bool


def solve_relaxed(matrix: Matrix, seconds: float) -> SolverResult:
    """Fractions allowed: quick, and a true bound."""
    return _run(matrix, {"time_limit": seconds}, None, integer=False)


def solve_integer(
    matrix: Matrix, seconds: float, gap: float = 0.0, start: Mapping[Column, int] | None = None
) -> SolverResult:
    return _run(matrix, {"time_limit": seconds, "mip_rel_gap": gap}, start, integer=True)


def _run(
    matrix: Matrix, limits: dict[str, float], start: Mapping[Column, int] | None, *, integer: bool
) -> SolverResult:
    columns = list(matrix.upper_bounds)
    if not columns:
        possible = all(lower <= 0 <= upper for lower, _, upper in matrix.rows)
        return SolverResult({}, matrix.offset if possible else None, True)
    try:
        import highspy
    except ImportError as missing:
        raise SolverUnavailable("highspy is not installed") from missing
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (OPTIONS | limits).items():
        solver.setOptionValue(option, value)
    solver.passModel(_model(matrix, columns, integer))
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = [float(start.get(column, 0)) for column in columns]
        solver.setSolution(solution)
    solver.run()
    return _read(solver, matrix, columns, integer)


def _read(solver: "highspy.Highs", matrix: Matrix, columns: list[Column], whole: bool) -> SolverResult:
    from highspy import HighsModelStatus, SolutionStatus

    status, info = solver.getModelStatus(), solver.getInfo()
    if status in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
        return SolverResult({}, None, True)
    finished = status == HighsModelStatus.kOptimal
    if not finished and status != HighsModelStatus.kTimeLimit:
        raise SolverUnavailable(f"the solver stopped: {solver.modelStatusToString(status)}")
    found = info.primal_solution_status == SolutionStatus.kSolutionStatusFeasible
    values = dict(zip(columns, solver.getSolution().col_value, strict=True)) if found else {}
    proven = info.mip_dual_bound if whole else info.objective_function_value if finished else -math.inf
    step = math.gcd(*matrix.cost.values()) or 1
    return SolverResult(
        values,
        _safe(proven, step) + matrix.offset if math.isfinite(proven) else min(0, matrix.offset),
        finished,
    )


def _safe(bound: float, step: int) -> int:
    """Costs are sums of prices, so a bound may be rounded up to one, once what floating point may have added is taken off."""
    return math.ceil((bound - BOUND_TOLERANCE * max(1.0, abs(bound))) / step) * step


def _model(matrix: Matrix, columns: list[Column], whole: bool) -> "highspy.HighsLp":
    import highspy

    number = {column: i for i, column in enumerate(columns)}
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(columns), len(matrix.rows)
    lp.col_cost_ = np.array([matrix.cost[column] for column in columns], float)
    lp.col_lower_, lp.col_upper_ = (
        np.zeros(len(columns)),
        np.array([matrix.upper_bounds[column] for column in columns], float),
    )
    scales = [_scale(terms) for _, terms, _ in matrix.rows]
    lp.row_lower_ = np.array(
        [lower / scale for (lower, _, _), scale in zip(matrix.rows, scales, strict=True)], float
    )
    lp.row_upper_ = np.array(
        [upper / scale for (_, _, upper), scale in zip(matrix.rows, scales, strict=True)], float
    )
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.cumsum([0, *(len(terms) for _, terms, _ in matrix.rows)])
    lp.a_matrix_.index_ = np.array([number[column] for _, terms, _ in matrix.rows for column in terms], int)
    terms_and_scales = zip(matrix.rows, scales, strict=True)
    lp.a_matrix_.value_ = np.array(
        [value / scale for (_, terms, _), scale in terms_and_scales for value in terms.values()], float
    )
    if whole:
        moves = highspy.HighsVarType.kContinuous  # whole by themselves once the replicas are
        lp.integrality_ = [moves if column[0] == "m" else highspy.HighsVarType.kInteger for column in columns]
    return lp


def _scale(terms: Mapping[Column, int]) -> float:
    """Bytes against bytes come down to small whole numbers; where they do not, at least to a size that tolerances suit."""
    common = math.gcd(*terms.values()) or 1
    largest = max((abs(value) for value in terms.values()), default=1) / common
    return common * max(1.0, largest / MAX_COEFFICIENT)
