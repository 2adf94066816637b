"""Make the pictures of README.md and of the pages: of runs against the simulator, in light and in dark.

It needs Chromium. A run whose client was not ``ok``, as on a busy machine, is made again.
"""

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
from playwright.sync_api import Browser, FloatRect, Page, sync_playwright

IMAGES = Path(__file__).parent.parent / "docs" / "images"
CHROMIUM = Path("/usr/bin/chromium-headless-shell")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
WIDTH, HEIGHT = 1200, 720
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")

RUN = ("llm-locust", "run")
LIMITS = ("--slo", "ttft=500ms tpot=50ms", "--gate", "goodput>=95%")
#: A request a second, and six a second for 5 s in every 20 s.
BURSTS = "\n".join(
    f'{{"timestamp": {second}.{k}, "input_length": 400, "output_length": 60, "hash_ids": [{second}]}}'
    for second in range(80)
    for k in range(6 if second % 20 < 5 else 1)
)

#: Runs until one has a client that is ``ok``; the run with the web UI, and seconds of it before its pictures.
TRIES, LIVE_FOR, LIVE_AFTER_S = 5, "100s", 60


def main() -> None:
    with tempfile.TemporaryDirectory() as text, sync_playwright() as playwright:
        folder = Path(text)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        _pictures_of_reports(browser, folder)
        for _ in range(TRIES):
            if _pictures_of_the_web_ui(browser, folder / "live"):
                break
            shutil.rmtree(folder / "live")
        browser.close()


def _pictures_of_reports(browser: Browser, folder: Path) -> None:
    (folder / "bursts.jsonl").write_text(BURSTS)
    trace = _run(
        folder / "bursts", "--sim", "--arrival", f"trace:{folder / 'bursts.jsonl'}", "--trace-unit", "s"
    )
    _take(browser, "bursts", trace, "#chart-requests-over-time", height=370)
    demo = _run(folder / "demo", "--sim", *LIMITS, "--for", "60s")
    _take(browser, "report", demo, height=590)
    with _deployment("--replicas", "4", "--replica-speed", "2=3x") as url:
        slow = _run(folder / "slow", url, "--users", "16", "--for", "60s", *LIMITS)
    _take(browser, "slow-replica", slow, height=640)
    _take(browser, "slow-replica-table", slow, "#chart-replicas-in-flight", "#groups", height=560)
    _take(browser, "page-over-time", slow, "#over-time", height=420)
    _take(browser, "page-latency", slow, "#latency", height=600)
    _take(browser, "page-limits", slow, "#chart-goodput-by-ttft", "#limits", height=355)


def _run(out: Path, *words: str) -> str:
    """The address of the page of a run whose client was ok."""
    for _ in range(TRIES):
        shutil.rmtree(out, ignore_errors=True)
        subprocess.run([*RUN, *words, "--out", str(out)], env=_environ(), check=False)
        if _verdict(out) == "ok":
            break
    else:
        print(f"{out.name}: no run of {TRIES} had a client that was ok; wait until the machine is idle")
    return (out / "report.html").as_uri()


def _verdict(out: Path) -> str:
    summary = msgspec.json.decode((out / "summary.json").read_bytes())
    return str(summary["client"]["verdict"])


def _environ() -> dict[str, str]:
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextlib.contextmanager
def _started(command: list[str], line: str, **streams: int) -> Iterator[str]:
    """The first line with ``line`` of a program that runs meanwhile."""
    with subprocess.Popen(command, env=_environ(), start_new_session=True, text=True, **streams) as process:  # type: ignore[call-overload]
        try:
            yield next(said for said in process.stdout or process.stderr if line in said)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.communicate()


@contextlib.contextmanager
def _deployment(*words: str) -> Iterator[str]:
    command = ["llm-locust", "sim", "--port", "0", *words]
    with _started(command, "listening on", stdout=subprocess.PIPE) as said:
        yield said.split()[2]


def _pictures_of_the_web_ui(browser: Browser, out: Path) -> bool:
    """Whether the client was ok when the picture of the live page was taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [*RUN, "--sim", *LIMITS, "--for", LIVE_FOR, "--ui", "--users", "6", "--out", str(out)]
    with _started([*command, "--", "--web-port", port], "web interface", stderr=subprocess.PIPE):
        url = f"http://127.0.0.1:{port}"
        _wait_for(int(port))
        _take(browser, "ui-start", url, height=640)
        page = browser.new_page()
        page.goto(url)
        page.get_by_role("button", name="Start", exact=True).click()
        page.wait_for_timeout(LIVE_AFTER_S * 1e3)
        page.close()
        is_ok = _client_is_ok(browser, url)
        _take(browser, "live", f"{url}/?tab=llm-charts", height=840)
        _take(browser, "ui-llm", f"{url}/?tab=llm", height=460)
        page = browser.new_page()
        page.goto(f"{url}/llm/reports")
        while not page.get_by_role("link", name="report.html").count():
            page.wait_for_timeout(2000)
            page.reload()
        page.close()
        _take(browser, "ui-reports", f"{url}/?tab=llm-reports", height=264)
    return is_ok


def _wait_for(port: int) -> None:
    """The line about the web interface comes before it listens."""
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.1)


def _client_is_ok(browser: Browser, url: str) -> bool:
    page = browser.new_page()
    page.goto(f"{url}/llm/charts")
    page.wait_for_timeout(3000)
    text = page.inner_text("body")
    page.close()
    return "Client\nok" in text


def _take(
    browser: Browser, name: str, url: str, selector: str = "body", within: str = "", height: int = HEIGHT
) -> None:
    """A picture in both schemes: from the top of ``selector``, over the width of ``within``."""
    for scheme in SCHEMES:
        context = browser.new_context(color_scheme=scheme, viewport={"width": WIDTH, "height": 1000})
        page = context.new_page()
        page.goto(url)
        page.wait_for_timeout(2000)
        picture = page.screenshot(clip=_clip(page, selector, within or selector, height), type="png")
        (IMAGES / f"{name}-{scheme}.png").write_bytes(with_few_colours(picture, page))
        context.close()


def _clip(page: Page, selector: str, within: str, height: int) -> FloatRect:
    element = page.locator(selector).first
    element.evaluate("element => element.scrollIntoView({block: 'start'})")
    page.wait_for_timeout(2000)  # until charts are drawn
    top, side = element.bounding_box(), page.locator(within).first.bounding_box()
    assert top is not None
    assert side is not None
    y = max(0, top["y"] - 8)
    return {"x": max(0, side["x"] - 8), "y": y, "width": min(WIDTH, side["width"] + 16), "height": height}


# --- PNG with a palette: a third of the size


#: The bytes of a picture, as a browser decodes them: red, green, blue and opacity of each pixel.
_DECODE = """async data => {
    const image = new Image();
    image.src = "data:image/png;base64," + data;
    await image.decode();
    const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, image.width, image.height).data;
    const parts = [];
    for (let i = 0; i < pixels.length; i += 32768)
        parts.push(String.fromCharCode(...pixels.subarray(i, i + 32768)));
    return btoa(parts.join(""));
}"""


def with_few_colours(png: bytes, page: Page) -> bytes:
    """A PNG with its 256 most frequent colours."""
    width, height = struct.unpack(">II", png[16:24])
    decoded = b64decode(page.evaluate(_DECODE, b64encode(png).decode()))
    pixels = np.frombuffer(decoded, np.uint8).reshape(height * width, 4)[:, :3]
    codes = pixels.astype(np.uint32) @ np.array([65536, 256, 1], np.uint32)
    colours, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts)[:256]]
    rgb = np.stack([palette >> 16, palette >> 8 & 255, palette & 255], 1).astype(np.int32)
    each = np.stack([colours >> 16, colours >> 8 & 255, colours & 255], 1).astype(np.int32)
    nearest = np.array([((rgb - colour) ** 2).sum(1).argmin() for colour in each], np.uint8)
    rows = np.zeros((height, width + 1), np.uint8)
    rows[:, 1:] = nearest[places.reshape(height, width)]
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            _chunk(b"PLTE", rgb.astype(np.uint8).tobytes()),
            _chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main()
