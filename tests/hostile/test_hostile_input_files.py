"""Files that have no end, or hold more than they seem to: refused in one line, in little memory."""

import gzip
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from process_limits import little_memory

from llm_locust.client.http.target import TargetError
from llm_locust.client.http.tls import tls_context
from llm_locust.core.files import SmallYamlError, read_small_yaml
from llm_locust.scenario import ScenarioError
from llm_locust.scenario.tree import read_text
from llm_locust.workload.datasets.load import load_conversations, load_dataset
from llm_locust.workload.datasets.row import DatasetError
from llm_locust.workload.lengths import LengthError, read_lengths
from llm_locust.workload.text.tokenizer import TokenizerError, load_tokenizer
from llm_locust.workload.traces import TraceError, open_trace
from llm_locust.workload.trajectories.pool import load_pool
from llm_locust.workload.trajectories.trajectory import TrajectoryError

#: Every reader of a file that a person names, with what it raises.
READERS: dict[str, tuple[Callable[[Path], object], type[ValueError]]] = {
    "trace": (open_trace, TraceError),
    "trajectories": (load_pool, TrajectoryError),
    "dataset": (load_dataset, DatasetError),
    "conversations": (load_conversations, DatasetError),
    "lengths": (read_lengths, LengthError),
    "scenario": (lambda path: read_text(str(path)), ScenarioError),
    "settings": (read_small_yaml, SmallYamlError),
    "tokenizer": (load_tokenizer, TokenizerError),
    "authority": (lambda path: tls_context(ca_cert=path), TargetError),
    "certificate": (lambda path: tls_context(client_cert=path), TargetError),
}

#: Of these, the ones whose readers read no more than a bound: OpenSSL reads a certificate as it comes.
BOUNDED = sorted(READERS.keys() - {"conversations", "authority", "certificate"})

#: Names by which a reader takes a file for one of another kind.
NAMES = {"dataset": ("f.jsonl", "f.json", "f.csv"), "trajectories": ("f.jsonl", "f.json")}

#: Memory that a refusal may take: the longest line of a dataset, some times over.
MOST_GROWTH = 700 << 20


def refusal(reader: str, path: Path) -> str:
    read, error = READERS[reader]
    with pytest.raises(error) as caught, little_memory(MOST_GROWTH):
        read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 2_500
    return str(caught.value)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX)
    place = os.open(path.parent, os.O_RDONLY)  # a path of a socket is short
    try:
        listener.bind(f"/proc/self/fd/{place}/{path.name}")
    finally:
        os.close(place)
        listener.close()


NO_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "pipe": (_fifo, "it is a pipe, not a file"),
    "socket": (_socket, "it is a socket, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "random device": (lambda path: path.symlink_to("/dev/urandom"), "it is a device, not a file"),
    "nothing": (lambda path: path.symlink_to("nowhere"), "cannot be read: No such file or directory"),
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_refused_without_being_opened(tmp_path: Path, reader: str, kind: str) -> None:
    make, says = NO_FILES[kind]
    for name in (*NAMES.get(reader, ("f",)), "f.parquet", "f.jsonl.gz"):
        make(tmp_path / name)
        assert says in refusal(reader, tmp_path / name)


def _packed(content: bytes) -> bytes:
    """A gzip file that expands to 2 GiB of this content."""
    return gzip.compress(content * (16 << 20)) * 128


#: Contents that go on for ever, as far as a reader can tell.
ENDLESS: dict[str, Callable[[Path], object]] = {
    "zeros": lambda path: os.truncate(path, 20 << 30),
    **{
        f"packed {name}": lambda path, content=content: path.write_bytes(_packed(content))  # type: ignore[misc]
        for name, content in {"blank lines": b"\n", "brackets": b"["}.items()
    },
}


@pytest.mark.parametrize("content", ENDLESS)
@pytest.mark.parametrize("reader", BOUNDED)
def test_what_has_no_end_is_refused_at_a_bound(tmp_path: Path, reader: str, content: str) -> None:
    path = tmp_path / "f"
    path.touch()
    ENDLESS[content](path)
    for name in NAMES.get(reader, ("f",)):
        path = path.rename(tmp_path / name)
        refusal(reader, path)
