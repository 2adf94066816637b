"""What stands for the files that public protocols need."""

import json
from functools import cache
from pathlib import Path

from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import load_scenario, scenario_path

FILES = {
    "trajectories": {"messages": [{"role": "user", "content": "Fix it."}], "target_output_tokens": 9},
    "dataset": {"messages": [{"role": "user", "content": "What is it?"}]},
}


@cache
def needs(name: str) -> tuple[str, ...]:
    """The options that a protocol needs."""
    return load_scenario(scenario_path(name), GRAMMAR).needs


def needed_files(name: str, folder: Path) -> dict[str, str]:
    """What a protocol needs, by option: files in ``folder``, written now."""
    given = {option: folder / f"{option}.jsonl" for option in needs(name)}
    for option, path in given.items():
        path.write_text(f"{json.dumps(FILES[option])}\n")
    return {option: str(path) for option, path in given.items()}
