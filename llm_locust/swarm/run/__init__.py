"""One run at the process that has its directory: its preparation, its workers, its end."""
