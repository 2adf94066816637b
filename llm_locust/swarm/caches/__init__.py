"""The servers' prefix caches before a stage of an experiment: emptied, looked at, filled."""
