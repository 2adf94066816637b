"""Tables of a run for other programs, as CSV files beside its report."""
