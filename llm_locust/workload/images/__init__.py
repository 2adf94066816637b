"""Synthetic images: what is asked for, and PNG files of noise."""
