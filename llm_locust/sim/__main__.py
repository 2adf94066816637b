"""``python -m llm_locust.sim``: the simulated deployment without the rest of the command line."""

import argparse
import sys

from llm_locust.sim import command

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m llm_locust.sim", description=command.DESCRIPTION)
    command.add_arguments(parser)
    sys.exit(command.run(parser.parse_args()))
