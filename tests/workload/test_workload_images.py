"""Images of prompts: valid files of the asked sizes, none like another, and who may ask for them."""

import json
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from llm_locust.options.load import against_lengths
from llm_locust.wire.chat_form import Size, images_in
from llm_locust.wire.dialects.chat import CHAT, COMPLETIONS
from llm_locust.wire.dialects.dialect import Dialect
from llm_locust.wire.dialects.results import EMBEDDINGS
from llm_locust.workload import prompts as noise
from llm_locust.workload.datasets import load_dataset
from llm_locust.workload.draws import parse_lengths
from llm_locust.workload.plan import Workload, WorkloadError, WorkloadSpec
from llm_locust.workload.prompts import (
    OWN_BYTES,
    ImagesError,
    Prompt,
    noise_image,
    parse_images,
    parse_sizes,
    with_images,
)


def file_of(size: Size, own: bytes = b"x" * OWN_BYTES) -> bytes:
    image = noise_image(size, own)
    return b64decode(image.body + image.end, validate=True)


def pixels(file: bytes) -> tuple[Size, bytes]:
    """Size and rows of a PNG file whose checksums are right."""
    assert file.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(file):
        length = int.from_bytes(file[at : at + 4], "big")
        kind, content = file[at + 4 : at + 8], file[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + content) == int.from_bytes(file[at + 8 + length : at + 12 + length], "big")
        chunks[kind] = content
        at += 12 + length
    header = chunks[b"IHDR"]
    assert (list(chunks), header[8:]) == ([b"IHDR", b"IDAT", b"IEND"], bytes((8, 2, 0, 0, 0)))
    size = Size(int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big"))
    return size, zlib.decompress(chunks[b"IDAT"])  # which checks their Adler-32


@given(st.integers(8, 90), st.integers(8, 90), st.binary(min_size=OWN_BYTES, max_size=OWN_BYTES))
@settings(max_examples=40)
def test_a_file_is_a_png_of_its_size_that_ends_with_its_own_pixels(
    width: int, height: int, own: bytes
) -> None:
    size, rows = pixels(file_of(Size(width, height), own))
    assert size == (width, height)
    assert len(rows) == height * (1 + 3 * width)
    assert set(rows[:: 1 + 3 * width]) == {0}  # no row has a filter
    assert rows.endswith(own)


def test_a_file_is_noise_that_does_not_compress() -> None:
    file = file_of(Size(256, 256))
    assert len(zlib.compress(file, 9)) > 0.99 * len(file)
    assert len(file) == pytest.approx(1.5 * 256 * 256, rel=0.05)


def spec(images: str | None, endpoint: Dialect = CHAT, **more: Any) -> WorkloadSpec:
    lengths = {} if "dataset" in more else {"input_tokens": parse_lengths("20")}
    return WorkloadSpec(endpoint=endpoint, images=images and parse_images(images), **lengths, **more)  # type: ignore[arg-type]


def prompts(of: WorkloadSpec, number: int, user: int = 0, salt: str = "run", worker: int = 0) -> list[Prompt]:
    made = Workload(of, 7, worker, 2, salt).prompts(user)
    return [next(made) for _ in range(number)]


def urls(of: WorkloadSpec, *args: Any, **more: Any) -> list[str]:
    template = of.body_template("m")
    return [
        part["image_url"]["url"]
        for prompt in prompts(of, *args, **more)
        for message in json.loads(template.encode(prompt))["messages"]
        for part in message["content"]
        if part["type"] == "image_url"
    ]


def test_no_two_images_of_a_run_are_alike_and_those_of_one_seed_and_salt_are() -> None:
    of = spec("count=3 size=16x16")
    found = [*urls(of, 20), *urls(of, 20, user=1), *urls(of, 20, worker=1), *urls(of, 20, salt="other")]
    assert len(found) == len(set(found)) == 240
    assert urls(of, 20) == found[:60]


def test_distinct_images_are_shared_by_all_users_and_keep_their_size() -> None:
    of = spec("count=2 size=0.5*16x16+0.5*24x8 distinct=5", unique_head=False)
    found = {*urls(of, 100), *urls(of, 100, user=1), *urls(of, 100, worker=1, salt="other")}
    assert len(found) == 5


def test_numbers_and_sizes_follow_their_distributions() -> None:
    of = spec("count=uniform:1,4 size=0.8*16x16+0.2*8x8")
    counted = [images_in(prompt.messages or ()) for prompt in prompts(of, 400)]
    assert {each.images for each in counted if each} == {1, 2, 3, 4}
    images = sum(each.images for each in counted if each)
    mean = sum(each.pixels or 0 for each in counted if each) / images
    assert mean == pytest.approx(0.8 * 256 + 0.2 * 64, rel=0.05)


def test_a_prompt_with_images_has_no_length_of_ours_since_a_server_counts_them_too() -> None:
    (prompt,) = prompts(spec("size=16x16"), 1)
    assert (prompt.asked_input_tokens, prompt.counted_input_tokens) == (None, None)
    text, image = (prompt.messages or ())[0]["content"]
    assert (text["type"], len(text["text"].split()), image["type"]) == ("text", 12, "image_url")


def test_the_last_message_of_a_datasets_line_has_the_images(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is this?"}]
    (tmp_path / "lines.jsonl").write_text(
        json.dumps({"messages": said}) + "\n" + json.dumps({"prompt": "and?"})
    )
    of = spec("count=2 size=16x16", dataset=load_dataset(tmp_path / "lines.jsonl"), unique_head=False)
    talk, text = prompts(of, 2)
    assert [isinstance(message["content"], list) for message in talk.messages or ()] == [False, True]
    assert (talk.messages or ())[1]["content"][0] == {"type": "text", "text": "what is this?"}
    assert images_in(text.messages or ()) == (2, 512)


def test_images_are_the_users_where_a_tool_or_the_model_has_said_the_last() -> None:
    said = ({"role": "user", "content": "look"}, {"role": "assistant", "content": "at?"}, {"role": "tool"})
    drawn = parse_images("count=1 size=16x16").draw(np.random.default_rng(1), "s")
    shown = with_images(Prompt(messages=said), drawn).messages or ()
    assert [isinstance(message.get("content"), list) for message in shown] == [True, False, False]


def test_no_file_is_made_anew_while_a_load_runs_however_many_sizes_it_has() -> None:
    sizes = [Size(8 + i, 9) for i in range(100)]
    asked = parse_images("size=" + "+".join(f"0.01*{s.width}x{s.height}" for s in sizes))
    asked.prepare()
    before = noise._noise.cache_info().misses
    for size in sizes:
        noise_image(size, b"x" * OWN_BYTES)
    assert noise._noise.cache_info().misses == before


@pytest.mark.parametrize("endpoint", [COMPLETIONS, EMBEDDINGS])
def test_an_endpoint_of_text_takes_no_images(endpoint: Dialect) -> None:
    with pytest.raises(
        WorkloadError, match=f"images for the {endpoint.name} endpoint, which takes text only"
    ):
        spec("size=16x16", endpoint)


def test_a_sweep_over_lengths_takes_no_images() -> None:
    assert any("--images" in why for why in against_lengths(spec("size=16x16")))
    assert not any("--images" in why for why in against_lengths(spec(None)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no size"),
        ("count=2", "there is no size"),
        ("size=16", "'16' is not WxH"),
        ("size=16x16 sise=3", "'sise' is not one of"),
        ("2 size=16x16", "'2' is not one of"),
        ("size=16x16 size=8x8", "given twice"),
        ("size=4x16", "sides are from 8 to 8,192"),
        ("size=9000x16", "sides are from 8 to 8,192"),
        ("size=8192x8192", "at most 16,777,216 pixels"),
        ("size=0.5*16x16+0.4*8x8", "0.9 in sum, not 1"),
        ("size=0.5*16x16+8x8", "in a mixture SHARE"),
        ("size=0*16x16+1*8x8", "'0' is not a share"),
        ("size=1.2.3*16x16+1*8x8", "'1.2.3' is not a share"),
        ("size=16x16 count=65", "at most 64"),
        ("size=16x16 count=0", "count: lengths"),
        ("size=1024x1024 count=17", "pixels in a request"),
        ("size=16x16 distinct=0", "distinct 0 is not in"),
        ("size=16x16 distinct=-1", "'-1' is not a whole number"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ImagesError, match="images") as caught:
        parse_images(text)
    assert said in str(caught.value)


def test_a_mixture_may_have_blanks() -> None:
    asked = parse_images("count=0.5*1 + 0.5*uniform:2,3 size=0.7*512x512 + 0.3*1280x720 distinct=9")
    assert asked.size.shares == parse_sizes("0.7*512x512+0.3*1280x720").shares
    assert (asked.count.most, asked.distinct) == (3, 9)
