"""The run's clock, and the offset of each worker's clock to it."""
