"""What a master does first with ``--resume``: compare what is there with what was asked for."""

import logging
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from llm_locust.core.manifest import Manifest
from llm_locust.core.stages import finished, resumed
from llm_locust.options.arrivals import LoadSettings
from llm_locust.options.settings import Settings, UsageError, parse_settings, with_roofline
from llm_locust.store import holds_a_run, read_manifest
from llm_locust.store.facts import adopt, parts_of
from llm_locust.swarm.channel.messages import RunInfo
from llm_locust.swarm.process.event_loop import off_the_hub
from llm_locust.swarm.run.run import versions
from llm_locust.swarm.soak.input_files import changed, digests, input_files

logger = logging.getLogger(__name__)

#: Options that change neither the load nor what is reported of it. The load of a sweep is its own, but for
#: one over lengths alone, which has the run's users.
MAY_DIFFER = frozenset(
    {
        *("out", "resume", "spool", "upload", "allow_incomplete", "full", "print_summary", "api_key_env"),
        *("num_users", "run_time", "stop_timeout", "processes", "expect_workers", "flush_timeout"),
    }
)

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
    if found := differences(manifests[-1], settings, files):
        raise UsageError(f"--resume: not the sweep in {str(folder)!r}: {'; '.join(found)}")
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
    then, now = _given(manifest.options), _given(settings.text)
    sweep = settings.load.sweep
    own_users = {"num_users"} if sweep is not None and not sweep.values else set()
    found = [
        f"--{name.replace('_', '-')} was {_shown(then, name)}, now {_shown(now, name)}"
        for name in sorted((then.keys() | now.keys()) - (MAY_DIFFER - own_users))
        if then.get(name) != now.get(name)
    ]
    document = {} if settings.scenario is None else settings.scenario.public_document
    if _plain(manifest.scenario_document) != _plain(document):
        found.append("the scenario's content is another one")
    if manifest.files:  # else it is of a version that kept none
        found += changed(manifest.files, files)
    was, is_now = manifest.versions.get("llm-locust"), versions()["llm-locust"]
    if was not in (None, is_now):
        found.append(f"llm-locust was {was}, now {is_now}: install {was} again, or name another --out")
    return found


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
