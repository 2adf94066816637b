"""``python -m llm_locust.swarm.main ARGS``: Locust's command, with this package's options and exit codes.

Unlike ``locust`` itself, it exits with 2 also if the locustfile is missing, or raises before it imports this
package: here the package is loaded first. A signal is taken from the first moment on.
"""

import sys

from llm_locust.swarm.process.early_signals import end_at_a_signal, open_standard_files


def main() -> None:
    """Run Locust with the process's arguments (raises SystemExit with its exit code)."""
    open_standard_files()
    end_at_a_signal()
    import locust.main  # deferred: it takes a second

    from llm_locust.swarm import plugin  # noqa: F401 - gives Locust the options, roles and exit codes

    sys.argv[0] = "locust"
    locust.main.main()


if __name__ == "__main__":
    main()
