"""Locust users, options and the path of records from workers to the run directory.

The only room that imports Locust.
"""
