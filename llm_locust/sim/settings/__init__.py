"""Settings of the simulated deployment: options, profiles of deployments."""
