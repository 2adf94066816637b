"""Roles of a process in a run: master, worker, or both in one, each built from the same few parts."""
