"""Answers of the simulated model: its text, and each API's events."""
