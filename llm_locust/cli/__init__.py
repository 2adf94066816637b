"""The ``llm-locust`` command: one module per subcommand; ``main`` has the parser, ``merge`` and ``options``."""
