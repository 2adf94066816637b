"""The fields of the web UI's form: each option in one group, with a text for a person."""

from collections import Counter

from llm_locust.options.table import OPTIONS
from llm_locust.swarm.web.fields import GROUPS, LONGEST_HELP, OTHERS, grouped

OURS = {row.name: str(row.argument["help"]) for row in OPTIONS if row.ui}


def test_each_option_of_the_form_is_in_one_group() -> None:
    found = Counter(name for names in GROUPS.values() for name in names)
    assert found == Counter(OURS.keys())


def test_no_field_of_a_locustfile_is_lost_and_an_empty_group_is_not_shown() -> None:
    groups = grouped({"slo": "limits", "mine": "of mine"})
    assert [(group.title, [field.name for field in group.fields]) for group in groups] == [
        ("Limits", ["slo"]),
        (OTHERS, ["mine"]),
    ]


def test_texts_are_for_a_person_and_short_and_nothing_of_them_is_lost() -> None:
    fields = [field for group in grouped(OURS) for field in group.fields]
    assert len(fields) == len(OURS)
    for field in fields:
        assert "%%" not in field.help + field.more, field.name
        assert (field.more or field.help).replace("%", "%%") == OURS[field.name]
        assert len(field.help) <= LONGEST_HELP + 60, field.name
