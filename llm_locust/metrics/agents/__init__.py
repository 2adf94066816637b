"""Agents that walk through trajectories: their turns, their jobs, and what a prefix cache had of them."""
