"""Run the linear solver (HiGHS) on a matrix: one thread, one seed and no output; the solver keeps its own
time limit."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lattice.placement.optimise.lp_matrix import MAX_COEFFICIENT, Column, Matrix

if TYPE_CHECKING:
    import highspy

# The share by which floating-point errors may have raised a bound.
BOUND_TOLERANCE = 1e-6


OPTIONS: dict[str, bool | int | float | str] = {
    "output_flag": False,
    "threads": 1,
    "parallel": "off",
    "random_seed": 0,
}


class SolverUnavailable(Exception):
    """The solver is not installed or stopped with an error."""


@dataclass(frozen=True, slots=True)
class SolverResult:
    """Values by column, empty if the solver found no solution; `bound` is a lower bound of the cost of every
    solution, None if the matrix has no solution."""

    values: Mapping[Column, float]
    bound: int | None
    is_finished: bool


def solve_relaxed(matrix: Matrix, seconds: float) -> SolverResult:
    """Solve with fractions allowed: fast, and a true lower bound."""
    return _run(matrix, {"time_limit": seconds}, None, integer=False)


def solve_integer(
    matrix: Matrix, seconds: float, gap: float = 0.0, start: Mapping[Column, int] | None = None
) -> SolverResult:
    """Solve with whole replicas and machines, from `start` if given."""
    return _run(matrix, {"time_limit": seconds, "mip_rel_gap": gap}, start, integer=True)


def _run(
    matrix: Matrix, limits: dict[str, float], start: Mapping[Column, int] | None, *, integer: bool
) -> SolverResult:
    columns = list(matrix.upper_bounds)
    if not columns:
        # Without columns every row is zero: the solver is not needed.
        is_feasible = all(lower <= 0 <= upper for lower, _, upper in matrix.rows)
        return SolverResult({}, matrix.offset if is_feasible else None, True)
    try:
        import highspy
    except ImportError as error:
        raise SolverUnavailable("highspy is not installed") from error
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


def _read(solver: "highspy.Highs", matrix: Matrix, columns: list[Column], is_integer: bool) -> SolverResult:
    """Read values and bound from the finished solver."""
    from highspy import HighsModelStatus, SolutionStatus

    status, info = solver.getModelStatus(), solver.getInfo()
    if status in (HighsModelStatus.kInfeasible, HighsModelStatus.kUnboundedOrInfeasible):
        return SolverResult({}, None, True)
    is_finished = status == HighsModelStatus.kOptimal
    if not is_finished and status != HighsModelStatus.kTimeLimit:
        raise SolverUnavailable(f"the solver stopped: {solver.modelStatusToString(status)}")
    is_feasible = info.primal_solution_status == SolutionStatus.kSolutionStatusFeasible
    values = dict(zip(columns, solver.getSolution().col_value, strict=True)) if is_feasible else {}
    if is_integer:
        proven = info.mip_dual_bound
    else:
        proven = info.objective_function_value if is_finished else -math.inf
    # Costs are sums of prices: every cost is a multiple of their greatest common divisor.
    step = math.gcd(*matrix.cost.values()) or 1
    if not math.isfinite(proven):
        return SolverResult(values, min(0, matrix.offset), is_finished)
    # Rounded up to the next possible cost, after the error of floating point is subtracted.
    bound = math.ceil((proven - BOUND_TOLERANCE * max(1.0, abs(proven))) / step) * step
    return SolverResult(values, bound + matrix.offset, is_finished)


def _model(matrix: Matrix, columns: list[Column], is_integer: bool) -> "highspy.HighsLp":
    """The matrix in the format of the solver; rows are scaled by `_scale`."""
    import highspy

    column_index = {column: position for position, column in enumerate(columns)}
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
    indices: list[int] = []
    values: list[float] = []
    for (_, terms, _), scale in zip(matrix.rows, scales, strict=True):
        for column, value in terms.items():
            indices.append(column_index[column])
            values.append(value / scale)
    lp.a_matrix_.index_ = np.array(indices, int)
    lp.a_matrix_.value_ = np.array(values, float)
    if is_integer:
        # Moves are integers by themselves once the replicas are.
        continuous, integer = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        lp.integrality_ = [continuous if column[0] == "m" else integer for column in columns]
    return lp


def _scale(terms: Mapping[Column, int]) -> float:
    """The divisor of a row: coefficients in bytes become small integers, or at least numbers that suit the
    tolerances of the solver."""
    common = math.gcd(*terms.values()) or 1
    largest = max((abs(value) for value in terms.values()), default=1) / common
    return common * max(1.0, largest / MAX_COEFFICIENT)
