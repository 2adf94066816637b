"""Values shared by all parts of the package: a request's record, batches of records, the manifest."""
