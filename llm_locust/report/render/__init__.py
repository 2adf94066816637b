"""Formats of a report for people: console and Markdown."""
