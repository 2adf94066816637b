"""Simulated deployment: a gateway and replicas that queue, batch, stream and fail like real ones."""
