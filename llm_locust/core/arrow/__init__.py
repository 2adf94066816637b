"""Arrow under a batch: the schema of records, arrays from numpy and back, streams of unknown origin."""
