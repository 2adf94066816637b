"""Keys in texts and addresses: in every spelling that a server or a person gives them."""

import json
from base64 import b64encode
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import example, given, strategies as st

from llm_locust.client.http.target import Target, TargetError
from llm_locust.deployment.discovery import Endpoint, EndpointError
from llm_locust.deployment.targets import Arm, ArmError
from llm_locust.options.table import GRAMMAR
from llm_locust.scenario.document import Scenario
from llm_locust.store.upload import UploadError, check_address, open_destination
from llm_locust.swarm.process.log import exporter_secrets
from llm_locust.wire.foreign_text import (
    blanked,
    blanked_name,
    is_variable,
    key_texts,
    public_url,
    shown_variable,
    url_fault,
    url_secret,
    without_keys,
)
from llm_locust.workload.body import BodyError, parse_body

KEY = "sk-Abc/123+very=secret"

keys = st.text("abcdefghij0123456789-_+/=.", min_size=8, max_size=60)
words = st.text(max_size=60)


@given(keys, words, words)
def test_no_key_is_left_in_a_text(key: str, before: str, after: str) -> None:
    for spelling in (key, quote(key, safe="")):
        assert spelling not in blanked(f"{before}{spelling}{after}", [key])
        assert spelling not in blanked_name(f"{before}{spelling}{after}", [key])


@given(keys, st.integers(8, 60))
def test_no_start_of_a_key_is_left_where_a_text_was_cut(key: str, kept: int) -> None:
    cut = f"model {key[:kept]}"
    assert key[:8] not in blanked(cut, [key])
    assert key[:8] not in blanked_name(cut, [key])


def test_a_key_whose_end_was_cut_off_is_blanked() -> None:
    for blank in (blanked, blanked_name):
        for kept in (10, 11, len(KEY)):
            assert blank(f"model {KEY[:kept]}", [KEY]) == "model ***"
            assert blanked(f"model {KEY[:kept]}; or", [KEY]) == "model ***; or"
    assert blanked(f"model {KEY[:7]}", [KEY]) == f"model {KEY[:7]}"


@pytest.mark.parametrize(
    ("name", "can"), [("API_KEY_2", True), ("2_KEY", False), ("KEY-A", False), ("KÉY", False), ("", False)]
)
def test_a_variable_has_a_plain_name(name: str, can: bool) -> None:
    assert is_variable(name) is can


def test_the_password_of_basic_authentication_is_known_in_plain_text() -> None:
    token = b64encode(b"alice:open sesame").decode()
    assert blanked("wrong password 'open sesame' for alice", [token]) == "wrong password '***' for alice"
    other = b64encode(b"a key of another kind").decode()
    assert blanked("a key of another kind", [other]) == "a key of another kind"


@given(words, st.lists(st.text(max_size=7)))
def test_short_values_of_headers_stay_in_names(name: str, values: list[str]) -> None:
    assert blanked_name(name, values) == name


def test_two_names_that_begin_as_a_secret_does_stay_two() -> None:
    names = ["research-node-1", "research-node-2", "stop", "length"]
    shown = [blanked_name(name, ["research-group-a", "length"]) for name in names]
    assert shown == names


SECRET_URLS = {
    f"http://me:{KEY}@host:8000": "user",
    "http://hushhush@host:8000/v1": "user",
    "http://me:hush/hush@host": "user",
    "http://me:hush?hush@host": "user",
    "http://me:hush#hush@host": "user",
    "https://me:hush@host/?next=http://other": "user",
    "me:hush@host": "user",
    "dns+http://me:hush@host": "user",
    "http://host/metrics?token=hush": "'token'",
    "http://host/v1?api_key=hush": "'api_key'",
    "http://host/v1?x=1&apikey=hush": "'apikey'",
    "http://host/v1?x=1;access_token=hush": "'access_token'",
    "http://host/v1#access_token=hush": "'access_token'",
    "http://host/v1?X-Amz-Signature=hush": "'X-Amz-Signature'",
    "http://host/v1?X-Amz-Security-Token=hush": "'X-Amz-Security-Token'",
    "http://host/v1?key=hush": "'key'",
    "http://host/v1?client_secret=hush&b": "'client_secret'",
    "http://host/v1?PASSWORD=hush": "'PASSWORD'",
    "http://host/v1?sig=hush": "'sig'",
}


@pytest.mark.parametrize("url", list(SECRET_URLS))
def test_a_key_in_a_url_is_found_named_and_not_shown(url: str) -> None:
    found = url_secret(url)
    assert found is not None
    assert SECRET_URLS[url] in found
    for shown in (found, public_url(url)):
        assert "hush" not in shown
        assert KEY not in shown


@pytest.mark.parametrize("url", list(SECRET_URLS))
def test_a_key_in_a_url_is_refused_and_not_repeated_wherever_one_can_be_given(url: str) -> None:
    with pytest.raises(TargetError) as target:
        Target.parse(url.removeprefix("dns+"))
    with pytest.raises(EndpointError) as endpoint:
        Endpoint.parse(url)
    said = [str(target.value), str(endpoint.value)]
    if "://" in url:
        with pytest.raises(UploadError) as upload:
            open_destination(url)
        said.append(str(upload.value))
    for text in said:
        assert "hush" not in text
        assert KEY not in text
        assert "\n" not in text


@pytest.mark.parametrize(
    "address",
    [
        "s3://KEY:hush@bucket/x",
        "s3://KEY:hu/sh@bucket/x",
        "s3://KEY:hu?sh@bucket/x",
        "s3://hush@bucket",
        "gs://KEY:hush@bucket/x",
        "s3://bucket/x?access_key=hush",
        "s3://bucket/x?secret_key=hush",
        "s3://bucket/x?session_token=hush&region=a",
        "s3://bucket/x?region=a&endpoint_override=http://me:hush@host:9000",
        "s3://bucket/x#token=hush",
        "file:///runs?token=hush",
        "https://host/x?anything=hush",
    ],
)
def test_a_key_in_an_upload_is_refused_before_there_is_a_client(address: str) -> None:
    with pytest.raises(UploadError) as refused:
        check_address(address)
    assert "hu" not in str(refused.value)
    with pytest.raises(UploadError):
        open_destination(address)


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/prefix?region=eu-1&scheme=http&endpoint_override=127.0.0.1:9000",
        "gs://bucket/p",
        "runs/x@y",
        "/a?b",
    ],
)
def test_an_address_without_a_key_is_taken(address: str) -> None:
    assert check_address(address).path is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://host:8000/v1",
        "http://[fe80::1]:8000/probe?module=http_2xx&target=x",
        "host:8000",
        "fe80::1",
        "http://host/federate?match[]=up&monkey=1",
        "dns+http://service:8000/metrics",
        "",
    ],
)
def test_an_ordinary_url_has_none(url: str) -> None:
    assert url_secret(url) is None


@given(st.text(max_size=80))
@example("http://[::1")
@example("://@?#")
def test_any_text_can_be_looked_at(text: str) -> None:
    url_secret(text)
    public_url(text)
    blanked(text, [text, KEY])
    blanked_name(text, [text, KEY])


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://host:hush/v1", "Port is no number"),
        ("http://host:65536", "Port out of range 0-65535"),
        ("http://[hush/v1", "Invalid IPv6 URL"),
        ("http://port-hush\u2100/v1", "it is no valid URL"),
    ],
)
def test_what_is_wrong_with_a_url_is_said_without_what_stands_in_it(url: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        _ = urlsplit(url).port
    assert url_fault(caught.value) == fault


@pytest.mark.parametrize(
    ("name", "value", "quoted"),
    [
        ("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Bearer%20{KEY}", f"authorization=Bearer%20{KEY}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"a=b,x-key = {KEY}", f"401: {KEY} is unknown"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", f"authorization=Bearer {KEY}", f"wrong token {KEY}"),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"authorization Bearer {KEY}", f"invalid: authorization Bearer {KEY}"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", f"https://me:{KEY}@collector:4317", f"to me:{KEY}@collector:4317"),
        ("OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", f"http://{KEY}@collector", f"no host {KEY}@collector"),
    ],
)
def test_keys_of_exporters_are_known_from_the_environment(name: str, value: str, quoted: str) -> None:
    assert KEY not in blanked(quoted, filter(None, exporter_secrets({name: value, "PATH": "/bin"})))
    assert not list(exporter_secrets({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector", "X_HEADERS": KEY}))


def test_a_key_where_the_name_of_a_variable_is_expected_is_not_shown() -> None:
    for key in ("sk-abcdef0123456789", "hf_abcdefGHIJ0123456789", "eyJhbGciOi.x.y", "a b"):
        assert key not in shown_variable(key)
    for name in ("NO_SUCH_KEY", "OPENAI_API_KEY", "K", "my_key"):
        assert shown_variable(name) == repr(name)


@pytest.mark.parametrize(
    "text",
    [
        '{"api_key": "hush", "x": NaN}',
        '{"headers": {"Authorization": "Bearer hush"}',
        "api_key=hush",
        '{"top_p": 1, "X-Token" "hush"}',
        'bearer hush, {"a": 1}',
    ],
)
def test_a_body_that_is_none_is_shown_up_to_the_name_of_a_key(text: str) -> None:
    with pytest.raises(
        BodyError, match=r"^body '.*(?i:key|authorization|token|bearer)…': .*; expected"
    ) as said:
        parse_body(text)
    assert "hush" not in str(said.value)
    with pytest.raises(ArmError) as refused:
        Arm.parse(f"a=http://a:1 {text}")
    assert "hush" not in str(refused.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, st.sampled_from(["api_key", "apiKey", "token", "X-Auth-Token", "client_secret", "key"]))
def test_fields_with_the_name_of_a_key_are_known_at_any_depth(value: object, name: str) -> None:
    nested = {"a": [value, {"b": {name: KEY}}]}
    assert KEY in set(key_texts(nested))
    assert KEY not in str(without_keys(nested))
    assert not list(key_texts(without_keys(nested)))


@given(json_values)
def test_a_body_without_such_names_stays_as_it_is(value: object) -> None:
    plain = {"messages": value} if not list(key_texts(value)) else {}
    assert without_keys(plain) == plain


def test_what_is_told_of_a_scenario_has_no_keys_of_bodies_or_headers() -> None:
    document = {"classes": {"a": {"body": {"provider": {"api_key": KEY}}, "headers": {"X-Key": KEY}}}}
    scenario = Scenario.from_text(json.dumps({"path": "s.yaml", "scenario": document}), GRAMMAR)
    assert KEY not in json.dumps(scenario.public_document)
    assert scenario.classes[0].body == {"provider": {"api_key": KEY}}
    assert KEY in scenario.text_for_workers()
