"""Images in messages: their number, their sizes by the header of the file, their text in a body."""

import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from image_files import data_url, png

from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.messages import MESSAGES
from llm_locust.wire.dialects.responses import RESPONSES
from llm_locust.wire.dialects.table import DIALECTS
from llm_locust.wire.images import ImageCount, InlineImage, Size, images_in, in_json, size_in, url_of

INLINE = InlineImage("image/png", Size(4, 3), b"AAAA", b"BB==")
WITH_IMAGES = ("chat", "messages", "responses")


def jpeg(width: int, height: int, before: int = 20) -> bytes:
    profile = b"\xff\xe1" + struct.pack(">H", before + 2) + b"x" * before
    return b"\xff\xd8" + profile + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, height, width) + b"rest"


@pytest.mark.parametrize("size", [Size(1, 1), Size(1 << 20, 1 << 20)])
def test_an_image_may_be_a_pixel_or_as_large_as_any(size: Size) -> None:
    assert size_in(data_url(png(size.width, size.height))) == size


def asked(dialect: Dialect, *urls: Any) -> list[Any]:
    """The messages of a body that has so many images, as its own API has them."""
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    message = {"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}
    body = json.loads(msgspec.json.Encoder(enc_hook=in_json).encode(dialect.body([message], {})))
    found: list[Any] = body.get("messages") or body["input"]
    return found


@pytest.mark.parametrize(
    ("url", "size"),
    [
        (data_url(png(640, 480)), Size(640, 480)),
        (data_url(jpeg(1920, 1080), "image/jpeg"), Size(1920, 1080)),
        (data_url(jpeg(7, 9, before=60_000)), Size(7, 9)),
        (data_url(png(0, 480)), None),
        (data_url(png(640, 0)), None),
        (data_url(png(1 << 31, 480)), None),
        (data_url(jpeg(8, 8)[:24]), None),
        (data_url(jpeg(8, 8)[:34]), None),
        (data_url(jpeg(8, 8)[:35]), Size(8, 8)),
        (data_url(b"\xff\xd8\xff\xe1\x00\x00" + b"\xff" * 40), None),
        (data_url(png(640, 480)[:16]), None),
        (data_url(png(640, 480)[:23]), None),
        (data_url(b"GIF89a"), None),
        ("https://host/cat.png", None),
        ("data:image/png;base64,éééé", None),
        ("data:image/png;base64," + "A", None),
        ("", None),
    ],
)
def test_a_size_is_that_of_the_files_header_or_unknown(url: str, size: Size | None) -> None:
    assert size_in(url) == size


@given(st.binary(max_size=200))
def test_no_bytes_make_the_header_raise(content: bytes) -> None:
    for head in (b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", png(1, 1)[:16]):
        size_in(data_url(head + content))
        size_in("data:image/png;base64," + content.decode("latin-1"))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_each_api_gets_an_image_in_its_own_form_and_it_is_counted_there(name: str) -> None:
    messages = asked(DIALECTS[name], INLINE, data_url(png(10, 20)))
    assert images_in(messages) == ImageCount(2, None)  # AAAABB== is no PNG
    assert images_in(asked(DIALECTS[name], data_url(png(10, 20)))) == ImageCount(1, 200)
    parts = messages[0]["content"]
    assert [url_of(part) for part in parts[1:]] == ["data:image/png;base64,AAAABB==", data_url(png(10, 20))]


def test_messages_take_the_bytes_apart_from_their_type_and_responses_a_url() -> None:
    (message,) = asked(MESSAGES, INLINE)
    source = {"type": "base64", "media_type": "image/png", "data": "AAAABB=="}
    assert message["content"][1] == {"type": "image", "source": source}
    (message,) = asked(RESPONSES, INLINE)
    assert message["content"][1]["type"] == "input_image"
    assert message["content"][1]["image_url"] == "data:image/png;base64,AAAABB=="


def test_an_image_that_is_not_sent_yet_is_counted_by_its_size() -> None:
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": INLINE}}]}
    assert images_in([message, message]) == ImageCount(2, 24)


@pytest.mark.parametrize(
    "messages",
    [[], [{"role": "user", "content": "text"}], [{"content": [{"type": "text", "text": "a"}, 1]}], [3]],
)
def test_messages_without_an_image_have_none(messages: list[Any]) -> None:
    assert images_in(messages) is None


def test_nothing_but_images_has_a_form_of_its_own_in_json() -> None:
    with pytest.raises(NotImplementedError, match="no JSON of set"):
        in_json(set())


def test_an_image_of_messages_may_be_one_that_the_server_fetches() -> None:
    source = {"type": "url", "url": "https://x/a.png"}
    assert url_of({"type": "image", "source": source}) == "https://x/a.png"
    assert url_of({"type": "input_image", "image_url": "https://x/b.png"}) == "https://x/b.png"
