"""Values that every part of the package shares: a request's record, batches of them, the manifest."""
