"""One run in the process that owns its directory: its checks before the load, its workers, its end."""
