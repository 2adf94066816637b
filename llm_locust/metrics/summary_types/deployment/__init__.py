"""Replicas by the records, and servers by what they say of themselves."""
