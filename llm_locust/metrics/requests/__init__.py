"""Metrics of single requests and their populations: latency, gaps, goodput, throughput, tokens."""
