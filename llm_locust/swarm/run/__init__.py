"""One run in the process that owns its directory: its preparation, its workers, its end."""
