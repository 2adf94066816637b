"""Sections of a report, before any format: one module a section."""
