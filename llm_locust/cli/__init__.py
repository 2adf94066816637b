"""The ``llm-locust`` command: one module per subcommand, except ``merge`` and ``options`` in ``main``."""
