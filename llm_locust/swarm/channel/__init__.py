"""The channel between workers and master: its keys, its messages, and the delivery of batches."""
