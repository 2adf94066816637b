"""The HTTP side of the simulated deployment: ports, gateway, replicas."""
