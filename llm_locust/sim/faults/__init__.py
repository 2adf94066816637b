"""Faults of the simulated deployment: of single requests, and of replicas by a timed plan."""
