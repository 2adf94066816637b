"""Statistics that know no figure: percentiles, intervals, censoring, trends, tests."""
