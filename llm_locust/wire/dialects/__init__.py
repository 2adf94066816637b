"""Readers of the APIs' answers: one module an API."""
