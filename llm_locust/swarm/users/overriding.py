"""Check of the names that a user class defines against those of its base classes."""

import inspect
from collections.abc import Iterator
from typing import Any

#: Packages whose classes are the bases of a locustfile's.
_BASES = ("llm_locust.", "locust.")

#: Methods that exist to be replaced.
_HOOKS = frozenset(("on_start", "on_stop"))


def check_overrides(cls: type) -> None:
    """Refuse a class that replaces a method or attribute of its bases by something else.

    Extending a method is allowed: a function that takes the same arguments and is not a task.

    Raises:
        TypeError: a task has the name of a base's attribute; or a value, or a function that does not take
            the same arguments, has the name of one of this package's methods.
    """
    for name in dict.fromkeys(_own_names(cls)):
        base = next((b for b in cls.__mro__ if _is_base(b) and name in vars(b)), None)
        what = None if base is None else _replaced(cls, base, name)
        if base is not None and what is not None:
            raise TypeError(
                f"user class {cls.__name__}: {name!r} is {what}, but {base.__name__}.{name} has that name "
                f"and is needed: rename yours, for example to '{name}_once'"
            )


def _own_names(cls: type) -> Iterator[str]:
    """Names whose meaning for the class is not that of a base, with dunder names left out."""
    seen: set[str] = set()
    for each in cls.__mro__:
        names = {name for name in vars(each) if not name.startswith("__")} - seen - _HOOKS
        seen |= names
        if not _is_base(each):
            yield from sorted(names)


def _is_base(cls: type) -> bool:
    return cls.__module__.startswith(_BASES)


def _replaced(cls: type, base: type, name: str) -> str | None:
    """What the class has under a base's name, if it cannot stand in for the base's."""
    theirs, ours = (inspect.getattr_static(each, name) for each in (cls, base))
    if hasattr(theirs, "locust_task_weight"):
        return "a task"
    if not base.__module__.startswith("llm_locust."):
        return None
    if isinstance(ours, property):
        return None if isinstance(theirs, property) else "not a property"
    if not inspect.isroutine(ours):
        return "a function" if inspect.isfunction(theirs) else None
    if not inspect.isroutine(theirs):
        return "not a function"
    same = _takes_the_same(getattr(cls, name), getattr(base, name))
    return None if same else "a function with other arguments"


def _takes_the_same(theirs: Any, ours: Any) -> bool:
    """Whether one function can be called with the fewest and with all arguments of another."""
    parameters = inspect.signature(ours).parameters.values()
    needed = [each for each in parameters if each.default is each.empty]
    return all(_binds(theirs, each) for each in (needed, list(parameters)))


def _binds(function: Any, parameters: list[inspect.Parameter]) -> bool:
    by_name = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    try:
        inspect.signature(function).bind(*[None] * (len(parameters) - len(by_name)), **dict.fromkeys(by_name))
    except TypeError:
        return False
    return True
