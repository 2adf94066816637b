"""What several loads show together: the edge under an SLO, the knee, what a deployment can take."""
