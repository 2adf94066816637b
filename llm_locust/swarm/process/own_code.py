"""Restriction of the Python code that a master may name to a worker: that of the worker's own locustfile.

A master that has not proved that it knows the run's secret may be anybody. It names validators
(``module:function``), and importing a module runs it. So a module must lie next to the locustfile, and
the function must be written there: a locustfile that imports ``os.system`` does not expose it to the
master.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

from llm_locust.options.settings import UsageError
from llm_locust.scenario.request_kind import RequestKind
from llm_locust.workload.answers import Validator

if TYPE_CHECKING:
    from locust.env import Environment


_WHAT_TO_DO = "; or give master and workers the same --swarm-secret-env"


def own_folders(locustfiles: Sequence[str], working_folder: str) -> tuple[str, ...]:
    """Folders of the locustfiles, and the working directory if one of them lies in or below it."""
    folders = [os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in locustfiles]
    working = os.path.realpath(working_folder)
    if any(os.path.commonpath((working, folder)) == working for folder in folders):
        folders.append(working)
    return tuple(dict.fromkeys(folders))


def check_named_functions(kinds: Iterable[RequestKind], folders: Sequence[str]) -> None:
    """Check that each validator function that ``kinds`` name is code of the ``folders``.

    No other module is imported for that.

    Raises:
        UsageError: one is not; the text names it.
    """
    for kind in kinds:
        for validator in kind.validators:
            if isinstance(validator, Validator) and validator.kind == "function":
                _check(str(validator.argument), folders)


def _check(named: str, folders: Sequence[str]) -> None:
    module, _, name = named.partition(":")
    if not _is_own(module, folders):
        raise UsageError(
            f"validator {named!r} of the master's scenario is not imported: {module!r} is not a module in "
            f"{' or '.join(folders)}, and the master has not proved that it knows the run's secret; put the "
            f"module next to the locustfile{_WHAT_TO_DO}"
        )
    try:
        own = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # a module of the user may raise anything
        raise UsageError(f"validator {named!r}: importing {module!r} failed: {e!r}") from e
    home = getattr(own, "__module__", None)
    if callable(own) and not (isinstance(home, str) and _is_own(home, folders)):
        raise UsageError(
            f"validator {named!r} of the master's scenario is not used: it is not written in {module!r} but "
            f"comes from {str(home)!r}; write a function of its own there{_WHAT_TO_DO}"
        )


def check_own_code(environment: "Environment", kinds: Iterable[RequestKind]) -> None:
    """As :func:`check_named_functions`, unless the master has sent the locustfile itself."""
    if getattr(environment.parsed_options, "locustfile", None) != "-":
        check_named_functions(kinds, own_folders(environment.parsed_locustfiles or (), os.getcwd()))


def _is_own(module: str, folders: Sequence[str]) -> bool:
    """Whether importing ``module`` reads a file of the folders, or of a package in them."""
    top, *rest = module.split(".")
    spec = _found(top)
    folder = _folder(spec)
    if spec is None or folder is None or folder not in folders:
        return False
    for i in range(len(rest)):
        if spec.submodule_search_locations is None:
            return False
        spec = _submodule(".".join((top, *rest[: i + 1])), spec)
        home = _folder(spec)
        if spec is None or home is None or os.path.commonpath((home, folder)) != folder:
            return False
    return True


def _found(top: str) -> ModuleSpec | None:
    """Return the spec of a top-level module without importing it."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # a module without a spec, such as __main__
        return None


def _submodule(name: str, package: ModuleSpec) -> ModuleSpec | None:
    """Spec of a submodule, which :func:`importlib.util.find_spec` finds only by importing its package."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__spec__
    return PathFinder.find_spec(name, package.submodule_search_locations)


def _folder(spec: ModuleSpec | None) -> str | None:
    """Folder of the module's file, or of its package; None without a file, as for a namespace.

    A link counts where it lies, not where it points: files of a ConfigMap are links into another folder.
    """
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.realpath(folder if spec.submodule_search_locations is None else os.path.dirname(folder))
