"""What a master with ``--restartable`` or ``--resume`` does first: go on with the parts of its run."""

import hashlib
import logging
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llm_locust.core.files import open_plain
from llm_locust.core.manifest import Manifest
from llm_locust.core.stages import finished, resumed
from llm_locust.options.load import LoadSettings
from llm_locust.options.settings import Settings, UsageError, parse_settings, with_roofline
from llm_locust.store import StoreError, holds_a_run, read_manifest
from llm_locust.store.facts import RunProgress, adopt, course_of, parts_of
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.process.exits import leave
from llm_locust.swarm.run.finishing import FinishError, join_elsewhere
from llm_locust.swarm.run.run import versions

logger = logging.getLogger(__name__)


def input_files(settings: Settings, locustfiles: Sequence[str]) -> dict[str, Path]:
    """Name -> path of locustfiles, and of data sets, trajectories, a trace and files of lengths.

    A locustfile's name starts at the folder of the first one, as the run may go on in another place; all
    others have the name that they were given by.
    """
    start = os.path.dirname(os.path.abspath(locustfiles[0])) if locustfiles else ""
    files = {os.path.relpath(file, start): Path(file) for file in locustfiles if os.path.isfile(file)}
    specs = [kind.spec for kind in settings.kinds]
    laws = [law.text for spec in specs for law in (spec.input_tokens, spec.output_tokens) if law is not None]
    given = [
        *(spec.dataset.path for spec in specs if spec.dataset is not None),
        *(rest for name, _, rest in (text.strip().partition(":") for text in laws) if name == "file"),
        *(text for text in (settings.text.get("trajectories"), settings.load.trace) if text),
    ]
    return files | {str(file): Path(file) for file in given}


def digests(files: Mapping[str, Path]) -> dict[str, str]:
    """SHA-256 of each file in hex; of a folder, that of the names and digests of all files in and below it.

    Raises:
        OSError, InputError: one cannot be read.
    """
    return {name: _of_folder(path) if path.is_dir() else _of_file(path) for name, path in files.items()}


def changed(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """A text for each file that is not what it was."""
    texts = []
    for name in sorted(then.keys() | now.keys()):
        if name not in now:
            texts.append(f"the file {name!r} is not read any more")
        elif name not in then:
            texts.append(f"the file {name!r} was not read then")
        elif then[name] != now[name]:
            texts.append(f"the content of {name!r} is another one")
    return texts


def _of_file(path: Path) -> str:
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_folder(folder: Path) -> str:
    lines = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            lines.update(f"{path.relative_to(folder)}\0{_of_file(path)}\n".encode(errors="surrogateescape"))
    return lines.hexdigest()


# --- What a master does first with ``--resume``: compare what is there with what was asked for


#: Options that change neither the load nor what is reported of it. The load of a sweep is its own, but for
#: one over lengths alone, which has the run's users.
MAY_DIFFER = frozenset(
    {
        *("out", "resume", "spool", "upload", "allow_incomplete", "full", "print_summary", "api_key_env"),
        *("num_users", "run_time", "stop_timeout", "processes", "expect_workers", "flush_timeout"),
    }
)

#: Locust's defaults, which it sets when a load begins: a manifest has them, and what is asked now has not.
_LOCUSTS = {"num_users": 1, "spawn_rate": 1}

#: What to do instead where ``--sim`` started the server.
_NEW_PORT = (
    ". With --sim each run has a simulator of its own at a new port: start `llm-locust sim` by itself, and "
    "give its address instead of --sim"
)


def resume(options: Namespace, locustfiles: Sequence[str]) -> bool:
    """Make the run in ``--out`` the first part of itself, if there is one; return whether nothing is left.

    Raises:
        UsageError: it is another sweep, or one that was finished without ``--resume``.
        StoreError: a manifest cannot be read.
        OSError: a file cannot be moved, or one that the load is made of cannot be read.
    """
    if not options.out:
        return False  # which the check of the run directory reports
    folder = Path(options.out)
    parts = parts_of(folder)
    manifests = [read_manifest(path) for path in parts or [folder] * holds_a_run(folder)]
    if not manifests:
        return False
    settings = with_roofline(parse_settings(options))
    files = off_the_hub(digests, input_files(settings, locustfiles))
    if texts := differences(manifests[-1], settings, files):
        raise UsageError(f"--resume: not the sweep in {str(folder)!r}: {'; '.join(texts)}")
    complete = is_complete(manifests, settings.load)
    if complete and not parts:
        raise UsageError(
            f"--resume: the sweep in {str(folder)!r} is finished; name another --out for a new one"
        )
    if not parts:
        adopt(folder)
    stages = resumed([*(manifest.stages for manifest in manifests), []])
    if not complete:
        logger.info("the sweep in %s goes on: %d stages are finished", folder, len(finished(stages)))
    return complete


def is_complete(manifests: Sequence[Manifest], load: LoadSettings) -> bool:
    """Whether no stage is left to run; of a search, whether its last part was ended in order."""
    done = len(finished(resumed([*(manifest.stages for manifest in manifests), []])))
    if load.search is not None or load.sweep is None:
        last = manifests[-1]
        return last.stopped_ns is not None and not last.cut_short
    return done >= load.sweep.stages * load.repeats


def differences(manifest: Manifest, settings: Settings, files: Mapping[str, str]) -> list[str]:
    """What was asked for differently then, each as a text."""
    if not manifest.is_sweep:
        return ["it is a run of one load"]
    then, now = _LOCUSTS | _given(manifest.options), _LOCUSTS | _given(settings.text)
    sweep = settings.load.sweep
    own_users = {"num_users"} if sweep is not None and not sweep.values else set()
    texts = [
        f"--{name.replace('_', '-')} was {_shown(then, name)}, now {_shown(now, name)}"
        for name in sorted((then.keys() | now.keys()) - (MAY_DIFFER - own_users))
        if then.get(name) != now.get(name)
    ]
    document = {} if settings.scenario is None else settings.scenario.public_document
    if _plain(manifest.scenario_document) != _plain(document):
        texts.append("the scenario's content is another one")
    if manifest.files:  # else it is of a version that kept none
        texts += changed(manifest.files, files)
    was, is_now = manifest.versions.get("llm-locust"), versions()["llm-locust"]
    if was not in (None, is_now):
        texts.append(f"llm-locust was {was}, now {is_now}: install {was} again, or name another --out")
    return texts


def check_server(parts: Sequence[Path], info: RunInfo) -> None:
    """Check that the server is that of the earlier parts (raises UsageError)."""
    for path in parts[-1:]:
        then = read_manifest(path)
        for what, was, is_now in (("host", then.host, info["host"]), ("model", then.model, info["model"])):
            if was != is_now:
                hint = _NEW_PORT if what == "host" and _is_local(was) and _is_local(is_now) else ""
                raise UsageError(
                    f"--resume: the {what} was {was!r}, now {is_now!r}; name another --out{hint}"
                )


def _is_local(host: object) -> bool:
    return str(host).startswith("http://127.0.0.1:")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: _plain(value) for name, value in options.items()}
    return {
        name: value for name, value in plain.items() if value not in (None, [], "") and value is not False
    }


def _plain(value: Any) -> Any:
    """The value as it comes back from a manifest."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _shown(options: Mapping[str, Any], name: str) -> str:
    return repr(options[name]) if name in options else "not given"


# --- What a master does first when it may be the next one of a restartable run


def go_on(options: Namespace, now_ns: int, locustfiles: Sequence[str]) -> None:
    """Set Locust's run time to what is left of the whole run, if there are parts of it.

    A sweep has its own end, and its run time is that of a part. If nothing is left, the report of all parts
    is made again. Without a web UI the process then ends with its exit code; with one it starts no load by
    itself.
    """
    if getattr(options, "resume", False):
        try:
            if resume(options, locustfiles):
                logger.warning("the sweep in %s is finished: its report is made again", options.out)
                _make_report(options)
        except (UsageError, StoreError, OSError) as e:
            leave(UsageError(str(e)))
        return
    course = _course(options)
    if course is None or not course.parts:
        return
    number, run_time_s = len(course.parts) + 1, options.run_time
    if isinstance(run_time_s, int | float) and run_time_s:
        left_s = int(course.left_s(run_time_s, now_ns))
        if not course.over and left_s:
            options.run_time = left_s
            logger.info("part %d of the run in %s: %d s are left", number, options.out, left_s)
            return
    elif not course.over:
        logger.info("part %d of the run in %s", number, options.out)
        return
    why = course.over or f"its {run_time_s:g} s are over"
    logger.warning("the run in %s is not begun again: %s; name another --out for a new one", options.out, why)
    _make_report(options)


def earlier_parts(options: object) -> tuple[Path, ...]:
    """Parts that were written before this process started."""
    out = getattr(options, "out", None)
    is_in_parts = getattr(options, "restartable", False) or getattr(options, "resume", False)
    return tuple(parts_of(Path(out))) if out and is_in_parts else ()


def _course(options: object) -> RunProgress | None:
    out = getattr(options, "out", None)
    if not getattr(options, "restartable", False) or not out:
        return None
    try:
        return course_of(Path(out))
    except StoreError as e:
        leave(UsageError(f"--restartable: {e}"))


def _make_report(options: Namespace) -> None:
    options.autostart = False
    try:
        report = join_elsewhere(Path(options.out), allow_incomplete=bool(options.allow_incomplete))
    except FinishError as e:
        leave(UsageError(f"there is no report of all parts: {e}"))
    if options.headless:
        raise SystemExit(report.exit_code)
