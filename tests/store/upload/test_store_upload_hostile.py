"""An object store that answers without an end: the upload ends with one line, in little memory."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from process_limits import little_memory
from upload_cases import Pauses, finished_run

from llm_locust.store.files import read_manifest
from llm_locust.store.upload.destination import MOST_READ_BYTES, UploadError
from llm_locust.store.upload.transfer import INDEX_FILE, RetryPolicy, upload_run

#: Memory that an upload to such a store may take beside the run's own files.
MOST_GROWTH = 600 << 20

_PAGE = """<?xml version="1.0"?><ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>
<NextContinuationToken>{n}</NextContinuationToken><KeyCount>1000</KeyCount>{keys}</ListBucketResult>"""


class Store(BaseHTTPRequestHandler):
    """A list has no end: one page follows the other. Objects are those of ``sizes``, by ends of names."""

    protocol_version = "HTTP/1.1"
    lists = 0
    sizes: dict[str, int] = {}  # noqa: RUF012

    def do_GET(self) -> None:
        if "list-type" in self.path:
            Store.lists += 1
            keys = "".join(
                f"<Contents><Key>x/{self.lists}-{i}</Key><Size>1</Size></Contents>" for i in range(1000)
            )
            self._answer(200, _PAGE.format(n=self.lists, keys=keys).encode())
            return
        size = self._size()
        if size is None:
            self._answer(404, b"")
            return
        first, last = (self.headers.get("Range") or f"bytes=0-{size - 1}").removeprefix("bytes=").split("-")
        count = min(int(last), size - 1) - int(first) + 1
        self.send_response(206)
        self.send_header("Content-Length", str(count))
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        while count > 0:
            self.wfile.write(b" " * min(count, 1 << 20))
            count -= 1 << 20

    def do_HEAD(self) -> None:
        size = self._size()
        self.send_response(404 if size is None else 200)
        self.send_header("Content-Length", str(size or 0))
        self.end_headers()

    def do_PUT(self) -> None:
        left = int(self.headers.get("Content-Length") or 0)
        self.rfile.read(left)
        self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")

    def do_POST(self) -> None:
        self.do_PUT()

    def _size(self) -> int | None:
        return next((size for end, size in self.sizes.items() if self.path.split("?")[0].endswith(end)), None)

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, int]], str]]:
    """Starts the store with these objects, and gives its address."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    Store.lists = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def address(sizes: dict[str, int]) -> str:
        Store.sizes = sizes
        return f"s3://b/x?scheme=http&endpoint_override=127.0.0.1:{server.server_address[1]}"

    yield address
    server.shutdown()
    server.server_close()
    thread.join()


def refusal(run: Path, to: str) -> str:
    with pytest.raises(UploadError) as caught, little_memory(MOST_GROWTH):
        upload_run(run, to, RetryPolicy(attempts=1, wait=Pauses()))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_list_without_an_end_is_not_asked_for(
    tmp_path: Path, store: Callable[[dict[str, int]], str]
) -> None:
    said = refusal(finished_run(tmp_path / "run"), store({}))
    assert Store.lists == 0
    assert "could not be uploaded to 's3://b/x?" in said  # writing is what this store refuses


@pytest.mark.parametrize("size", [MOST_READ_BYTES + 1, 1 << 50])
def test_a_list_of_sent_files_that_is_too_large_is_refused(
    tmp_path: Path, store: Callable[[dict[str, int]], str], size: int
) -> None:
    run = finished_run(tmp_path / "run")
    said = refusal(run, store({f"{read_manifest(run).id}/{INDEX_FILE}": size}))
    assert f"{INDEX_FILE} there is larger than 64 MiB, and no file of a run is" in said
