"""YAML with places: what values are, and that whatever is broken gives one line that points at it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from llm_locust.core.files import SETTINGS
from llm_locust.scenario.tree import (
    MAX_DEPTH,
    Fields,
    Place,
    ScenarioError,
    from_plain,
    parse_yaml,
    plain,
    read_text,
)


def complaint(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_yaml(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("5", 5),
        ("-5", -5),
        ("007", 7),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        # What YAML 1.1 would make a truth value, 90, 16, a date or infinity of:
        ("no", "no"),
        ("1:30", "1:30"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2026-01-31", "2026-01-31"),
        (".inf", ".inf"),
        ("1e999", "1e999"),
        ("->20% over 30s", "->20% over 30s"),
    ],
)
def test_plain_values_are_those_of_json_and_all_else_is_text(written: str, value: object) -> None:
    found = plain(parse_yaml(f"a: {written}\n", "f"))["a"]
    assert (found, type(found)) == (value, type(value))


def test_every_key_and_value_knows_its_place() -> None:
    root = parse_yaml("a: 1\nb:\n  - x\n  - {c: y}\n", "f")
    assert isinstance(root, Fields)
    entry = root.entries["b"]
    assert (str(entry.key), str(entry.node.place)) == ("f:2:1", "f:3:3")


def test_anchors_and_merge_keys_work_and_own_keys_win_wherever_they_stand() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {y: 3, <<: [*a, *b]}\nd: {<<: *b}\ne: *a\n"
    found = plain(parse_yaml(text, "f"))
    assert found["c"] == {"x": 1, "y": 3, "z": 2}
    assert found["d"] == {"y": 2, "z": 2}
    assert found["e"] == {"x": 1, "y": 1}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", "f.yaml:3:1: the key 'a' is there twice"),
        ("a: {<<: {b: 1}, <<: {b: 2}}", "f.yaml:1:17: the key '<<' is there twice"),
        (
            "a:\n\t- b",
            "found character '\\t' that cannot start any token; indent with spaces",
        ),
        ("a: [1,\n2", "f.yaml:2:2: broken YAML: while parsing a flow sequence (line 1), expected ',' or ']'"),
        ("a: 'x", "f.yaml:1:6: broken YAML: while scanning a quoted scalar (line 1), found unexpected end"),
        ("a: *b", "f.yaml:1:4: broken YAML: found undefined alias 'b'"),
        ("a: b: c", "f.yaml:1:5: broken YAML: mapping values are not allowed here"),
        ("--- a\n--- b", "but found another document"),
        ('a: "\\U00110000"', "f.yaml:1:7: broken YAML: chr() arg not in range"),
        ('a: "\\U99999999"', "f.yaml:1:7: broken YAML: "),
        ('a: "\\ud83d\\ude00"', "f.yaml:1:4: '\\ud83d\\ude00' has half a surrogate pair"),
        ("a:\n  b\x01", "f.yaml:2:4: the character '\\x01' is not allowed"),
        ("%YAML 9" + "9" * 5000 + ".1\n---\na", "f.yaml:1:7: broken YAML: Exceeds the limit"),
        ("a: <<\n<<: 3", "f.yaml:2:5: << takes a mapping or a list of mappings"),
        ("? [a]\n: b", "f.yaml:1:3: a key must be a text"),
        ("~: b", "f.yaml:1:1: a key must be a text"),
        ("# nothing\n", "f.yaml:1:1: nothing in it"),
        ("a: !!int x", "f.yaml:1:4: the tag 'tag:yaml.org,2002:int' of 'x' is not allowed"),
    ],
)
def test_what_is_broken_gives_one_line_with_its_place(text: str, said: str) -> None:
    message = complaint(text)
    assert said in message
    assert message.startswith("f.yaml:")
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:os.system", "!!python/name:os.system", "!mine", "!!set"]
)
def test_tags_that_could_construct_something_are_refused(tag: str) -> None:
    assert "is not allowed; leave it out" in complaint(f"a: {tag} ['true']")
    assert "is not allowed; leave it out" in complaint(f"a: {tag} 'true'")


def test_a_billion_laughs_are_bounded() -> None:
    lines = ["a0: &a0 [l, l, l, l, l, l, l, l, l, l]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "with its aliases replaced, the file is larger than 1,048,576" in complaint("\n".join(lines))


def test_a_long_text_that_is_repeated_by_aliases_is_bounded() -> None:
    text = f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 100)}]"
    assert "larger than" in complaint(text)


@pytest.mark.parametrize("text", ["&a [*a]", "&a {b: *a}", "[" * 5000, "{a: " * 5000, "- " * 5000 + "x"])
def test_depth_is_bounded_also_where_an_alias_holds_itself(text: str) -> None:
    assert f"deeper than {MAX_DEPTH}" in complaint(text)


def test_as_deep_as_allowed_is_allowed() -> None:
    depth = MAX_DEPTH - 1
    assert plain(parse_yaml("[" * depth + "1" + "]" * depth, "f"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: 1\nb: \xff", ":2:4: byte 0xff is not UTF-8"),
        ("a: 1".encode("utf-16"), ":1:1: byte 0xff is not UTF-8"),
        (
            b"#" * (SETTINGS.expanded_bytes + 1),
            ": longer than 64 KiB, the limit of such a file; prompts belong into files of their own",
        ),
    ],
)
def test_a_file_of_other_bytes_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        read_text(str(path))
    assert str(caught.value).startswith(f"{path}{said}")


def test_a_byte_order_mark_is_no_content(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1")
    assert read_text(str(path)) == "a: 1"


def test_a_missing_file_a_folder_and_an_impossible_name_are_told_apart(tmp_path: Path) -> None:
    said = []
    for name in (tmp_path / "none.yaml", tmp_path, f"{tmp_path}/a\0b"):
        with pytest.raises(ScenarioError) as caught:
            read_text(str(name))
        said.append(str(caught.value))
    assert "No such file" in said[0]
    assert "directory" in said[1]
    assert "null byte" in said[2]
    assert "\\x00" in said[2]


def test_a_path_with_a_line_break_still_gives_one_line() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_yaml("a: [", "odd\nname.yaml")
    assert str(caught.value).startswith("odd\\nname.yaml:1:5: ")


_plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(_plain_values)
def test_plain_values_survive_the_tree(value: Any) -> None:
    assert plain(from_plain(value, Place("f"))) == value


_pieces = st.lists(
    st.sampled_from(
        [*list("ab1:-?[]{}&*!|>'\"%@`,#~ \n\t"), "\n- ", "\n  ", ": ", "<<: ", "&a ", "*a", "---\n", "\\u"]
    )
    | st.characters(),
    max_size=40,
).map("".join)


@given(_pieces)
def test_any_text_whatsoever_is_a_tree_or_one_line(text: str) -> None:
    message = "f:"
    try:
        parse_yaml(text, "f")
    except ScenarioError as e:
        message = str(e)
    assert len(message.splitlines()) == 1
    assert message.startswith("f:")
