"""Checks of answers: validators and expected answers."""
