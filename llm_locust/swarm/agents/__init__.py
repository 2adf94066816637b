"""Agents: users that walk through recorded trajectories."""
