"""Options of a run that measures several loads."""
