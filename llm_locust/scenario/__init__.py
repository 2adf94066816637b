"""The scenario file: a run's options, its classes of requests, its warm-up and stop rules, checked."""
