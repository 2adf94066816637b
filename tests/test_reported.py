"""Troubles of people who load-test LLM servers, from public reports: what is right, and the test of it.

Numbers are those of the collection that the reports were tried from, which leaves some out. Where no reason
is in the row, it stands beside the test.
"""

import ast
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import pytest

TESTS = Path(__file__).parent


class Trouble(NamedTuple):
    """``tests`` are ``file::test``, or ``file::test[row]`` where a row of a table holds it."""

    said: str
    right: str
    tests: tuple[str, ...]


ANSWERS = (
    "client/test_client_reported.py::test_a_reported_answer_has_its_outcome_its_counts_and_the_servers_words"
)
SPLITS = "client/test_client_reported.py::test_a_split_at_every_byte_changes_nothing"
ENDS = "client/test_client_ends.py"
USAGE = "wire/test_usage.py"
HOOKS = "swarm/users/test_swarm_locust_hooks.py"
DATA = "workload/test_datasets_forms.py"


def answers(*rows: str) -> tuple[str, ...]:
    return tuple(f"{ANSWERS}[{row}]" for row in rows)


TROUBLES: dict[int, Trouble] = {
    1: Trouble(
        "an error in mid-answer as the field `error:`, then [DONE]",
        "api_error with the server's words: nobody has the rest of the answer",
        answers("error as a field"),
    ),
    2: Trouble("the same before the first token", "the same words, not `empty`", answers("before a token")),
    4: Trouble(
        "an event of an error whose text is a comment", "api_error with the comment", answers("in a comment")
    ),
    5: Trouble(
        "a JSON error without `data:` in the stream",
        "api_error with its message, with [DONE] and without",
        answers("bare", "bare, done", "bare, pretty"),
    ),
    7: Trouble("finish reason `network_error`", "api_error: the answer was cut", answers("network")),
    8: Trouble(
        "`insufficient_system_resource`, `ERROR`, an object of type abort",
        "api_error: what a load test looks for",
        answers("overload", "upper case", "abort object"),
    ),
    10: Trouble(
        'finish reason `""` in every chunk, then [DONE]',
        "ok, counts right; doubtful, for nobody said how it ended",
        answers("empty reasons"),
    ),
    11: Trouble(
        "error objects at the top, LiteLLM's, TGI's without blanks",
        "api_error with the server's words",
        answers("object at the top", "LiteLLM", "TGI"),
    ),
    13: Trouble(
        "a login page with status 200", "invalid, with status, type and the page's start", answers("a page")
    ),
    14: Trouble(
        "the response stays open after [DONE], or is reset",
        "ok: the answer is decided; left open is counted",
        (
            *answers("left open"),
            f"{ENDS}::test_after_the_finish_reason_and_the_end_nothing_changes_an_answer",
        ),
    ),
    16: Trouble(
        "one more chunk of private data after the end, or a named ping",
        "ok: it has nothing of an answer",
        answers("private chunk", "private, null", "named ping"),
    ),
    17: Trouble(
        "a chunk of usage without choices", "ok, tokens by usage", answers("choices empty", "no choices")
    ),
    19: Trouble("usage in the choice", "counted by usage", answers("Moonshot")),
    20: Trouble("usage in `x_groq`", "counted by usage", answers("Groq")),
    22: Trouble(
        "reasoning only in `reasoning_details`",
        "its first piece is the first token",
        answers("reasoning_details"),
    ),
    23: Trouble("reasoning in `thinking`", "the same; no buffer is blamed", answers("thinking")),
    25: Trouble(
        "usage of zeros, null or a part, before or after a full one",
        "the full one stands",
        answers("zeros first", "null later", "zeros after", "a part after"),
    ),
    26: Trouble(
        "`reasoning_content` and `reasoning` at once, thinking parts of a content",
        "read, and counted once",
        answers("both names", "Mistral"),
    ),
    28: Trouble(
        "a first chunk of 20 tokens, counted in each chunk",
        "the pace is that of the tokens after it",
        answers("20 at first"),
    ),
    29: Trouble(
        "any split of bytes, no blank after `data:`, CRLF, BOM, `id:`",
        "the same as the whole",
        (*answers("CRLF, no blank, ids"), SPLITS),
    ),
    31: Trouble("SSE as text/plain, or without a type", "read as a stream", answers("plain text", "no type")),
    32: Trouble(
        "gzip that nobody asked for",
        "an error is unpacked, an answer refused in clear words",
        answers("a packed error", "a packed answer"),
    ),
    34: Trouble(
        "the Responses API: reasoning, failure",
        "tokens, and the server's words",
        answers("responses", "responses, failed"),
    ),
    35: Trouble(
        "Qwen's traces look like Mooncake's: seconds, 16 tokens a hash",
        "known by their keys; units that cannot be are refused; one line says how a file was read",
        (
            "workload/test_traces_plausible.py::test_the_keys_of_a_chat_mean_seconds_and_blocks_of_16_whatever_their_order",
            "workload/test_traces_plausible.py::test_prompts_have_in_common_what_their_hashes_have",
            "workload/test_traces_plausible.py::test_a_rate_that_no_service_has_is_refused_with_the_unit_that_it_may_be",
        ),
    ),
    37: Trouble(
        "sessions without times",
        "refused with the option that takes them",
        ("workload/test_traces_plausible.py::test_a_file_of_another_kind_is_refused_with_the_option_for_it",),
    ),
    38: Trouble(
        "Azure's and BurstGPT's files: no output, zones, no fraction, BOM, CRLF, blank lines",
        "the right times; a bound of at least one token",
        (
            "workload/test_workload_traces.py::test_azure_times_with_seven_digits_a_zone_or_no_fraction_are_understood",
            "workload/test_workload_traces.py::test_a_byte_order_mark_windows_line_ends_and_quotes_do_no_harm",
            "workload/test_workload_traces.py::test_each_format_is_recognised_and_gives_times_and_lengths",
        ),
    ),
    40: Trouble(
        "`text`, batch files' `body`, MT-bench's `turns`",
        "prompts",
        (f"{DATA}::test_every_form_is_a_prompt_in_lines_in_a_list_and_packed",),
    ),
    41: Trouble(
        "ShareGPT with calls of tools, and items of null",
        "left out; bad lines are skipped on request, and counted",
        (
            f"{DATA}::test_calls_of_tools_and_items_without_a_text_are_left_out",
            f"{DATA}::test_bad_lines_are_skipped_up_to_a_number_and_counted",
        ),
    ),
    43: Trouble(
        "which keys of a line reach the server",
        "those of an API, which a page lists; the others are named",
        (
            f"{DATA}::test_what_is_no_field_of_an_api_is_not_sent_and_is_named",
            f"{DATA}::test_the_page_lists_the_keys_that_are_sent",
        ),
    ),
    44: Trouble(
        "a task calls `runner.quit()` or `.stop()`",
        "the load is over at once, complete, exit code 0",
        (f"{HOOKS}::test_a_load_that_the_locustfile_ends_is_over_complete_and_not_cut_short",),
    ),
    46: Trouble(
        "users log in in `on_start`",
        "each sends its own token; nothing is sent before",
        (f"{HOOKS}::test_users_log_in_in_on_start_and_each_sends_its_own_token",),
    ),
    47: Trouble(
        "tags leave a class without a task, or none",
        "left out and said; refused in a line",
        (f"{HOOKS}::test_a_class_without_a_task_of_the_tags_is_left_out_and_a_tag_of_none_refused",),
    ),
    49: Trouble(
        "nested TaskSets, SequentialTaskSet, tags, --csv, --html, --json-file",
        "all there, with the names and counts that were sent",
        (
            f"{HOOKS}::test_locusts_own_files_have_the_tasks_of_nested_sets_by_name_and_as_often_as_they_were_sent",
        ),
    ),
    50: Trouble(
        "the web UI below a path; autostart, autoquit",
        "every page is below it; the run ends by itself, complete",
        (
            "swarm/web/test_swarm_web_pages.py::test_with_a_login_every_page_asks_for_it_and_is_below_the_path",
            "swarm/web/test_swarm_web_pages.py::test_locusts_page_is_below_the_path_too",
            "swarm/process/test_swarm_signals.py::test_an_end_by_the_run_time_needs_no_reason_and_is_in_the_manifest"
            "_as_it_was_given[--autostart --autoquit]",
        ),
    ),
    52: Trouble(
        "two classes with a host each",
        "refused: figures of two servers in one would be of neither; the line names what loads both",
        (
            "swarm/run/test_swarm_load_checks.py::test_two_hosts_of_two_classes_are_refused_with_what_loads_both_and_one"
            "_host_is_taken",
        ),
    ),
    53: Trouble(
        "HTTPS by an address, with a certificate for a name",
        "--tls-name gives the name, --insecure skips the check; the error names both",
        (
            "client/http/test_client_tls.py::test_another_name_of_the_server_is_told_it_and_checked",
            "client/http/test_client_tls.py::test_without_a_check_any_certificate_is_accepted",
            "client/http/test_client_tls.py::test_the_systems_authorities_do_not_know_ours_and_the_text_says_what_to_do",
        ),
    ),
    55: Trouble(
        "a key with a line end, a BOM or quotes out of a file",
        "blanks are stripped, what is no key is refused without showing it",
        (
            "options/test_swarm_options.py::test_a_key_out_of_a_file_loses_the_blanks_around_it_or_is_refused_and_not_shown",
        ),
    ),
    56: Trouble(
        "a header as curl writes it, with a key that ends in `=`",
        "no error shows what is behind a header's name",
        ("options/test_swarm_options.py::test_no_error_quotes_what_stands_behind_a_headers_name",),
    ),
    58: Trouble(
        "the server closes kept connections after a short time",
        "an untouched request is sent again once, and recorded; one of which a byte came back is not",
        (
            "client/http/test_client_connection.py::test_a_connection_that_was_closed_before_the_request_came_is_replaced"
            "_once_and_that_is_recorded",
            "client/http/test_client_connection.py::test_no_call_is_repeated_once_a_byte_has_come",
            "client/http/test_client_connection.py::test_no_call_is_repeated_on_a_fresh_connection",
        ),
    ),
    59: Trouble(
        "vLLM's new metrics beside the old, two engines, OpenMetrics, NaN",
        "each once, and no value where there is none",
        (
            "deployment/test_deployment_exposition.py::test_two_engines_with_old_and_new_names_in_openmetrics_count_once_each",
            "deployment/test_deployment_exposition.py::test_an_old_name_beside_the_new_one_does_not_count_twice",
        ),
    ),
    61: Trouble(
        "`--rate inf`, `10/s`, `--for '1m 30s'`",
        "refused, with what does the same",
        (
            "workload/test_arrivals_rates.py::test_a_wrong_rate_says_the_value_and_what_is_allowed_in_one_line[inf]",
            "workload/test_arrivals_rates.py::test_a_wrong_rate_says_the_value_and_what_is_allowed_in_one_line[10/s]",
            "core/test_texts.py::test_anything_else_is_refused_with_what_to_write[1m 30s]",
        ),
    ),
    62: Trouble(
        "few prompts sent again and again: 96 % out of the cache",
        "each begins with a head of its own, also before a system message and in parts",
        (
            "workload/test_workload_plan.py::test_a_dataset_line_gets_a_new_head_each_time",
            "workload/test_workload_prompts.py::test_a_head_goes_before_the_first_message_and_leaves_the_others"
            "_and_the_original_alone",
            "workload/test_workload_prompts.py::test_a_head_becomes_the_first_part_of_a_message_of_parts",
        ),
    ),
}


@lru_cache
def _read(file: str) -> tuple[frozenset[str], frozenset[str]]:
    """The functions of a file of tests, and all texts in it."""
    nodes = list(ast.walk(ast.parse((TESTS / file).read_text())))
    names = frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return names, frozenset(
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


@pytest.mark.parametrize(
    "test", [test for trouble in TROUBLES.values() for test in trouble.tests], ids=lambda test: test[-60:]
)
def test_each_trouble_has_a_test_that_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    name, _, row = name.partition("[")
    names, texts = _read(file)
    assert name in names
    assert not row or row.removesuffix("]") in texts
