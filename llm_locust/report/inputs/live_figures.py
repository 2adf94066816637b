"""``live.json``: the last live figures of a run, from the process that showed them to the one that checks."""

from pathlib import Path

import msgspec

from llm_locust.metrics.sections.live_check import LiveEnd
from llm_locust.store import StoreError, write_json
from llm_locust.store.files import read_own_file
from llm_locust.wire.payload import DECODE_ERRORS

LIVE_FILE = "live.json"


def write_live_end(run: Path, end: LiveEnd) -> None:
    """Keep them in the run directory (raises OSError)."""
    write_json(run / LIVE_FILE, end)


def read_live_end(run: Path, id_: str) -> LiveEnd | None:
    """Those of the run with this id; None where there are none.

    Raises:
        StoreError: the file is not of live figures.
    """
    path = run / LIVE_FILE
    try:
        end = msgspec.json.decode(read_own_file(path), type=LiveEnd)
    except FileNotFoundError:
        return None
    except StoreError:
        raise
    except (*DECODE_ERRORS, OSError) as e:
        raise StoreError(
            f"{str(path)!r} holds no live figures; remove it, the report can do without: {e}"
        ) from e
    return end if end.run == id_ else None
