"""Comparison of runs: figures, differences beyond noise, relative gates."""
