"""``docs/options.md``, and the tables of ``docs/scenario.md``: made of the rows of options and keys."""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from llm_locust.options.option import Option
from llm_locust.options.table import LOCUST_OPTIONS, OPTIONS
from llm_locust.scenario.document import ARM, OF_CLASSES, OF_RUN, PRESETS, SHARED, About, Stop, WarmUp
from llm_locust.scenario.readers import (
    IMAGES,
    SHARED_PREFIX,
    VALIDATORS,
    Conversation,
    DatasetSource,
    Expected,
)
from llm_locust.scenario.tree import Key

_HEAD = """# Options

All options of a load test, in addition to Locust's own. `make docs` writes this page from the rows in
`llm_locust/options/`.

The command line wins over the environment, the environment over the [scenario](scenario.md), the scenario
over the default. *Scenario* is the form of the value under the key of the option's name; *of classes* are
keys in [a table of their own](scenario.md#top-level-given-to-every-class). An option under *web UI* is in the
form that starts a run, one under *recorded* is in the manifest and in the report.

| option | environment | scenario | web UI | recorded | default | meaning |
|---|---|---|---|---|---|---|
"""

_DEFAULT = re.compile(r"(?: \(|; )default:? (?P<default>.*?)\)?$")

#: What stands around a generated table in ``docs/scenario.md``: its name.
SCENARIO_TABLE = re.compile(r"(<!-- table of ([a-z_ ]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

#: Name of a table -> the keys that it has.
SCENARIO_KEYS: Mapping[str, Mapping[str, Key]] = {
    "the run": OF_RUN,
    "every class": SHARED,
    "a class": OF_CLASSES,
    "arms": ARM,
    "dataset": DatasetSource.keys(),
    "images": IMAGES,
    "shared_prefix": SHARED_PREFIX,
    "conversation": Conversation.keys(),
    "validators": VALIDATORS,
    "expected": Expected.keys(),
    "warm_up": WarmUp.keys(),
    "about": About.keys(),
    "stop": Stop.keys(),
}


def reference() -> str:
    """The text of ``options.md``."""
    return _HEAD + "".join(f"| {' | '.join(_cells(row))} |\n" for row in OPTIONS)


def with_scenario_tables(text: str) -> str:
    """``docs/scenario.md`` with its tables made again."""
    return SCENARIO_TABLE.sub(lambda found: f"{found[1]}{_scenario_table(found[2])}{found[3]}", text)


def _scenario_table(name: str) -> str:
    if name == "presets":
        return _table("preset | input tokens | output tokens | limits", _preset_rows())
    if name == "locust options":
        rows: Iterable[tuple[str, ...]] = (
            (f"`{row.key or row.name}`", row.form.says, row.meaning) for row in LOCUST_OPTIONS if row.form
        )
    else:
        rows = ((f"`{name}`", key.value, key.meaning) for name, key in SCENARIO_KEYS[name].items())
    return _table("key | value | meaning", rows)


def _preset_rows() -> Iterable[tuple[str, ...]]:
    for name, preset in PRESETS.items():
        limits = f"`{preset.slo}`" if preset.slo else "none: throughput counts"
        yield f"`{name}`", f"`{preset.input_tokens}`", f"`{preset.output_tokens}`", limits


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", f"|{'---|' * len(head.split('|'))}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""])


def _cells(row: Option) -> tuple[str, ...]:
    default = _DEFAULT.search(row.help)
    meaning = row.help if default is None else row.help[: default.start()]
    value = row.metavar or ("" if row.kind == "truth" else "|".join(row.choices) or row.name.upper())
    forms = {"run": row.scenario_form.says, "classes": "of classes", None: ""}
    return (
        f"`{_cell(f'{row.flag} {value}'.strip())}`",
        f"`{row.variable}`",
        forms[row.scope],
        "yes" if row.ui else "",
        "" if row.record is None else "yes",
        "" if default is None else _text(default["default"]),
        _text(meaning),
    )


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def _text(text: str) -> str:
    return re.sub(r"([<>*])", r"\\\1", _cell(text))


if __name__ == "__main__":
    options = Path(sys.argv[1])
    options.write_text(reference(), encoding="utf-8")
    scenario = options.with_name("scenario.md")
    scenario.write_text(with_scenario_tables(scenario.read_text(encoding="utf-8")), encoding="utf-8")
