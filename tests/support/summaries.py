"""Summaries as the content of ``summary.json``, which tests look into and change by its keys."""

from types import SimpleNamespace
from typing import Any

from llm_locust.figures import summarise as made
from llm_locust.figures.summary import as_json, from_json as typed

__all__ = ("faked", "summarise", "typed")


def summarise(*args: Any, **options: Any) -> dict[str, Any]:
    """The content of ``summary.json`` of requests."""
    return as_json(made.summarise(*args, **options))


#: Keys whose objects are dictionaries by their type too.
_DICTIONARIES = ("latency_ms", "latency_ms_adjusted", "ci95", "slo", "slo_by_class")


def faked(found: Any, **more: Any) -> Any:
    """An object that has these keys as attributes, in place of a struct that would need many more."""
    if not isinstance(found, dict):
        return found
    fields = {key: each if key in _DICTIONARIES else faked(each) for key, each in (found | more).items()}
    return SimpleNamespace(**fields)
