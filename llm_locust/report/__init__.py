"""Formatting only: one summary as text for a terminal, a pull request, a spreadsheet."""
