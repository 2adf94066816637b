"""The run's time, and each worker's clock against it."""
