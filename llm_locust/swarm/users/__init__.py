"""Locust user classes, and what the users of one process share during a run."""
