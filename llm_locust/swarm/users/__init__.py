"""Locust user classes, what the users of one process share, and what sets the load: schedules and stages."""
