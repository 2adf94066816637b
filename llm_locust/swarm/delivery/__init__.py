"""Delivery of batches from workers to the master: each exactly once."""
