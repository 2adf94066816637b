"""Exactly-once delivery of batches from workers to the master."""
