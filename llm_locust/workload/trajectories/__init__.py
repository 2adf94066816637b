"""Trajectories: recorded tasks of agents, turn by turn, with the pauses of tools and their sub-agents."""
