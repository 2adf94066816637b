"""The ``llm-locust`` command: one module per subcommand."""
