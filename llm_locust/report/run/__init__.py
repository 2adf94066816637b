"""The report of a run: from its records to files, again with other limits, or while it goes on."""
