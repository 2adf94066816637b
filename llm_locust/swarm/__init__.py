"""Everything that runs in a Locust process: users, delivery of records, live numbers, roles, the web UI."""
