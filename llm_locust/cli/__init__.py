"""The ``llm-locust`` command: one module a subcommand."""
