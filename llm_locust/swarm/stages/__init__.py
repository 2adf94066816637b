"""Stages of a run: their plan, and the driver of a sweep."""
