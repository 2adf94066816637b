"""``docs/options.md``, the reference of all options, made of their rows by ``make docs``."""

import re
import sys
from pathlib import Path

from llm_locust.options.option import Option
from llm_locust.options.table import OPTIONS

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


def reference() -> str:
    """The text of the page."""
    return _HEAD + "".join(f"| {' | '.join(_cells(row))} |\n" for row in OPTIONS)


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
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
