"""Lengths as distributions: in tokens, in time, or out of a file."""
