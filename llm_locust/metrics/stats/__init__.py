"""Statistics without knowledge of requests: percentiles, intervals, censoring, trends, tests."""
