"""The ``llm-locust`` command: one module per subcommand, and their table in ``main``."""
