"""Lengths as distributions: in tokens, in time, or from a file."""
