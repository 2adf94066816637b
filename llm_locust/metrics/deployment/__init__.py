"""Metrics of the servers: replicas, routing, fairness, utilisation, energy, cost."""
