"""Operations of factorisations of a dense matrix, by its sides (Golub and Van Loan, Matrix Computations)."""

from __future__ import annotations

from typing import Literal

__all__ = ["solve_operations", "svd_operations"]


def svd_operations(long: int, short: int, what: Literal["values", "thin", "full"]) -> float:
    """Return the operations of only singular values, with the vectors of the short side, or with square factors."""
    m, n = float(long), float(short)
    if what == "values":
        return 2 * m * n**2 + 2 * n**3
    return 6 * m * n**2 + 20 * n**3 if what == "thin" else 4 * m**2 * n + 22 * n**3


def solve_operations(side: int, columns: int, *, is_factored: bool) -> float:
    """Return the operations of solving for so many columns, with the matrix factored already or not."""
    n = float(side)
    return 2 * n**2 * columns + (0.0 if is_factored else 2 / 3 * n**3)
