"""Requests of --scenario: its classes, in a closed or an open loop."""
