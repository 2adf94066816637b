"""Figures of each stage of a run, and whether they are a result."""
