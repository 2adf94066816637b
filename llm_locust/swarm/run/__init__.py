"""Roles in a run: master, worker, a process that is both; its preparation and its end."""
