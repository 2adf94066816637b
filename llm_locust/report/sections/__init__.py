"""Sections of a report, before any format: one module per subject, which may have several sections."""
