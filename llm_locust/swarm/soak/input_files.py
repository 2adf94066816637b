"""Digests of the files that a load is made of: a sweep that goes on with other content is another sweep."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_locust.core.files import open_plain
from llm_locust.options.settings import Settings


def input_files(settings: Settings, locustfiles: Sequence[str]) -> dict[str, Path]:
    """Name -> path of locustfiles, and of data sets, trajectories, a trace and files of lengths.

    A locustfile's name starts at the folder of the first one, as the run may go on in another place; all
    others have the name that they were given by.
    """
    start = os.path.dirname(os.path.abspath(locustfiles[0])) if locustfiles else ""
    found = {os.path.relpath(file, start): Path(file) for file in locustfiles if os.path.isfile(file)}
    specs = [kind.spec for kind in settings.kinds]
    laws = [law.text for spec in specs for law in (spec.input_tokens, spec.output_tokens) if law is not None]
    given = [
        *(spec.dataset.path for spec in specs if spec.dataset is not None),
        *(rest for name, _, rest in (text.strip().partition(":") for text in laws) if name == "file"),
        *(text for text in (settings.text.get("trajectories"), settings.load.trace) if text),
    ]
    return found | {str(file): Path(file) for file in given}


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file in hex; of a folder, that of the names and digests of all files in and below it.

    Raises:
        OSError, InputError: one cannot be read.
    """
    return {name: _of_folder(path) if path.is_dir() else _of_file(path) for name, path in files.items()}


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A text for each file that is not what it was."""
    found = []
    for name in sorted(then.keys() | now.keys()):
        if name not in now:
            found.append(f"the file {name!r} is not read any more")
        elif name not in then:
            found.append(f"the file {name!r} was not read then")
        elif then[name] != now[name]:
            found.append(f"the content of {name!r} is another one")
    return found


def _of_file(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_folder(folder: Path) -> str:
    lines = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            lines.update(f"{path.relative_to(folder)}\0{_of_file(path)}\n".encode(errors="surrogateescape"))
    return lines.hexdigest()
