"""``python -m llm_locust``: the ``llm-locust`` command."""

import sys

from llm_locust.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
