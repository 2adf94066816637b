"""Arms of an interleaved comparison: the figures of each, and their differences from the first."""
