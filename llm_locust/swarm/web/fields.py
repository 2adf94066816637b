"""The fields of the web UI's form for the options of a load test: their groups, and a text below each.

Locust's form has them in one list and with their help as labels, which are cut off at the width of a field.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from llm_locust.options.table import OPTION

if TYPE_CHECKING:  # locust patches the process when it is imported
    from locust.web import WebUI

#: Names of options by what they are for; what most runs need comes first.
GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "Limits": ("slo", "gate", "warmup"),
        "What is sent": (
            *("model", "input_tokens", "output_tokens", "dataset"),
            *("shared_prefix", "models", "images"),
        ),
        "Requests at a rate": ("request_rate", "arrival", "max_in_flight"),
        "End of the run": ("num_requests", "stop_when", "drain", "note"),
        "Several loads in one run": (
            *("sweep", "find", "stage_time", "until", "repeat", "first_load", "precision", "max_stages"),
        ),
    }
)

#: FieldGroup of the options that a locustfile adds.
OTHERS = "Options of the locustfile"

#: A help that is longer is cut at its first semicolon; the whole is shown when the mouse is over it.
LONGEST_HELP = 160

Args = dict[str, Any]


class FormField(msgspec.Struct, frozen=True):
    """``help`` is shown below the field, ``more`` when the mouse is over that."""

    name: str
    help: str
    more: str = ""


class FieldGroup(msgspec.Struct, frozen=True):
    title: str
    fields: list[FormField]


def group_fields(web_ui: "WebUI") -> None:
    """Put the fields of Locust's form in groups from now on, each with a short label."""
    update: Callable[[], None] = web_ui.update_template_args

    def update_and_group() -> None:
        update()
        args: Args = web_ui.template_args
        options: dict[str, Args] = args.get("extra_options") or {}
        groups = grouped({name: each.get("help_text") or "" for name, each in options.items()})
        ordered = [field.name for group in groups for field in group.fields]
        args["extra_options"] = {name: options[name] | {"help_text": ""} for name in ordered}
        args["llm_groups"] = msgspec.to_builtins(groups)

    web_ui.update_template_args = update_and_group  # type: ignore[method-assign]


def grouped(helps: Mapping[str, str]) -> list[FieldGroup]:
    """The groups of a form.

    Args:
        helps: the text of each field, by its name, as argparse has it.
    """
    others = [name for name in helps if name not in OPTION]
    named: dict[str, Sequence[str]] = {**GROUPS, OTHERS: others}
    known = {name for names in named.values() for name in names}
    named |= {"More": [name for name in helps if name not in known]}
    groups = [
        FieldGroup(title, [_field(name, helps[name]) for name in names if name in helps])
        for title, names in named.items()
    ]
    return [group for group in groups if group.fields]


def _field(name: str, help_text: str) -> FormField:
    text = help_text.replace("%%", "%")
    short = text.split("; ")[0] if len(text) > LONGEST_HELP else text
    return FormField(name, short, "" if short == text else text)
