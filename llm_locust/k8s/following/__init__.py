"""A run in a cluster, followed from here: created, watched, its log, its files, removed."""
