"""Whose Python code a master may name to a worker: that of the worker's own locustfile.

A master that has not proved to know the run's secret may be anybody's. It names validators
(``module:function``), and to import a module runs it. So a module has to lie beside the locustfile, and the
function has to be written there: a locustfile that imports ``os.system`` does not lend it to the master.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder

from llm_locust.options.settings import UsageError
from llm_locust.scenario import Validator
from llm_locust.scenario.request_kind import RequestKind

_WHAT_TO_DO = "; or give master and workers the same --swarm-secret-env"


def own_folders(locustfiles: Sequence[str], working_folder: str) -> tuple[str, ...]:
    """The folders of the locustfiles, and the working directory where one of them lies in it or below."""
    folders = [os.path.realpath(os.path.dirname(os.path.abspath(path))) for path in locustfiles]
    working = os.path.realpath(working_folder)
    if any(os.path.commonpath((working, folder)) == working for folder in folders):
        folders.append(working)
    return tuple(dict.fromkeys(folders))


def check_named_functions(kinds: Iterable[RequestKind], folders: Sequence[str]) -> None:
    """See that each validator function that ``kinds`` name is code of the ``folders``.

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
            f"validator {named!r} of the master's scenario is not imported: {module!r} is no module in "
            f"{' or '.join(folders)}, and the master has not proved that it knows the run's secret; put the "
            f"module beside the locustfile{_WHAT_TO_DO}"
        )
    try:
        own = getattr(importlib.import_module(module), name, None)
    except Exception as e:  # a module of the user's own may raise anything
        raise UsageError(f"validator {named!r}: importing {module!r} failed: {e!r}") from e
    home = getattr(own, "__module__", None)
    if callable(own) and not (isinstance(home, str) and _is_own(home, folders)):
        raise UsageError(
            f"validator {named!r} of the master's scenario is not used: it is not written in {module!r} but "
            f"comes from {str(home)!r}; write a function of its own there{_WHAT_TO_DO}"
        )


def _is_own(module: str, folders: Sequence[str]) -> bool:
    """Whether an import of ``module`` takes a file of the folders, or of a package in them."""
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
    """What an import of a module outside packages takes; nothing is imported."""
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):  # one that has no spec, such as __main__
        return None


def _submodule(name: str, package: ModuleSpec) -> ModuleSpec | None:
    """The same inside a package, which :func:`importlib.util.find_spec` would import."""
    loaded = sys.modules.get(name)
    if loaded is not None:
        return loaded.__spec__
    return PathFinder.find_spec(name, package.submodule_search_locations)


def _folder(spec: ModuleSpec | None) -> str | None:
    """Where the module's file lies, or its package's folder; None without a file, as of a namespace.

    A link counts where it lies: files of a ConfigMap are links into another folder.
    """
    if spec is None or not spec.has_location or spec.origin is None:
        return None
    folder = os.path.dirname(os.path.abspath(spec.origin))
    return os.path.realpath(folder if spec.submodule_search_locations is None else os.path.dirname(folder))
