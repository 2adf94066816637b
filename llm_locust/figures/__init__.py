"""Every figure of a run: what it means, how it is computed, and how a report shows it."""
