"""Products of few rows: how many of them a program holds (no torch)."""

ROWS_AT_ONCE = (1, 2, 4, 8)
"""More rows than the last are more programs, which read the weights again (from L2, as a rule)."""


def rows_at_once(num_rows: int) -> int:
    """Rows of a program in a launch of so many."""
    return next((rows for rows in ROWS_AT_ONCE if rows >= num_rows), ROWS_AT_ONCE[-1])
