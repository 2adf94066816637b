"""``llm-locust compare``: what it prints and writes of two runs, of several, and of every load of them."""

import csv
import io
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from compare_cases import write_made_run
from metrics_cases import ns

from llm_locust.cli.main import main
from llm_locust.figures.relative_gates import parse_relative_gates
from llm_locust.metrics.question import Question
from llm_locust.report.analysis import analyse
from llm_locust.report.comparison import ComparedRuns, answer, compare_runs
from llm_locust.report.comparison_page import page, scaled, sections
from llm_locust.report.console import print_sections
from llm_locust.report.inputs import Source
from llm_locust.report.markdown import markdown_of
from llm_locust.store import MANIFEST_FILE, REQUESTS_FILE

EVIL = '<script>alert("x")</script> | `code` <b>'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs of one server, and one whose TTFT is half as long again."""
    folder = tmp_path_factory.mktemp("runs")
    return {
        "base": write_made_run(folder / "base", 1),
        "same": write_made_run(folder / "same", 2, started_ns=ns(3600)),
        "slow": write_made_run(folder / "slow", 3, 1.5, started_ns=ns(7200)),
    }


def run(*words: object) -> int:
    return main(["compare", *map(str, words)])


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that the command says as it refuses with exit code 2."""
    assert run(*words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("llm-locust compare: ")
    return said.err


def printed(outcome: ComparedRuns, width: int = 80) -> str:
    file = io.StringIO()
    print_sections(sections(outcome), file, width)
    return file.getvalue()


def line_of(text: str, start: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(start))


def pair(runs: dict[str, Path], base: str, new: str, gates: str = "") -> ComparedRuns:
    return compare_runs([runs[base], runs[new]], gates=parse_relative_gates(gates))


def test_an_output_without_unicode_gets_plain_signs(runs: dict[str, Path]) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    print_sections(sections(pair(runs, "base", "slow", "p50_ttft<=+5%")), file, 80)
    text = raw.getvalue().decode("ascii")
    assert "?" not in text
    assert ".. +" in text


@pytest.mark.parametrize(
    ("new", "words", "last"),
    [
        ("slow", ["--gate", "p50_ttft<=+5%"], r"FAIL: TTFT p50 \+\d+\.\d % \(at most \+5 %\) · exit 1"),
        (
            "slow",
            ["--gate", "p50_ttft<=+5% mean_ttft<=+5% p95_ttft<=+5% goodput>=-1%"],
            r"FAIL: .* \(at most \+5 %\), 1 more gate · exit 1",
        ),
        (
            "same",
            ["--gate", "error_rate<=+1pp"],
            r"PASS: Error rate 0\.0 pp \(at most \+1 pp\) · exit 0",
        ),
        (
            "same",
            ["--gate", "p99_ttft<=+0%"],
            r"UNKNOWN: TTFT p99 .* \(at most 0 %\): noise could hide a change of \+1 %; .* "
            r"times the requests would (tell|be needed to tell) · exit 3",
        ),
        (
            "same",
            ["--gate", "p99_ttft<=+0%", "--gate-unknown", "pass"],
            r"UNKNOWN: .* · exit 0, as --gate-unknown pass asks",
        ),
        ("slow", ["--gate", "p50_ttft<=+5% p99_ttft<=+0%", "--gate-unknown", "pass"], r"FAIL: .* · exit 1"),
        (
            "slow",
            [],
            r"WORSE: Goodput ratio -.* pp, .*TTFT p50 \+.*, \d+ more figures · exit 0, as no gate was given",
        ),
        (
            "same",
            [],
            r"NO DIFFERENCE: \d+ of \d+ figures do not differ by more than noise.* · exit 0",
        ),
    ],
)
def test_the_last_line_is_the_answer_with_its_exit_code(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], new: str, words: list[str], last: str
) -> None:
    code = run(runs["base"], runs[new], *words)
    text = capsys.readouterr().out
    said = " ".join(text.rstrip("\n").rpartition("\n\n")[2].split())
    assert re.fullmatch(last, said), said
    assert f"exit {code}" in said
    assert text.startswith("Answer") or said.partition(" · ")[0] in " ".join(text.split())


def test_a_comparison_the_other_way_round_is_better_and_short_runs_are_unknown(tmp_path: Path) -> None:
    paths = {
        name: write_made_run(tmp_path / name, i, scale) for i, (name, scale) in enumerate(SCALES.items())
    }
    assert answer(compare_runs([paths["slow"], paths["usual"]])).word == "BETTER"
    tiny = [write_made_run(tmp_path / f"tiny{i}", 10 + i, n=4) for i in range(2)]
    found = answer(compare_runs(tiny))
    assert (found.word, found.code) == ("UNKNOWN", 0)
    cut = write_made_run(tmp_path / "cut", 21, cut_short=True)
    found = answer(compare_runs([paths["usual"], cut]))
    assert (found.word, found.parts) == (
        "UNKNOWN",
        ("nothing moved beyond noise, but base or new is a part of a run",),
    )
    gates = parse_relative_gates("p50_ttft<=+40% p99_ttft<=+40%")
    (said,) = answer(compare_runs([paths["usual"], cut], gates=gates)).parts
    assert re.fullmatch(r"TTFT p50 .*, TTFT p99 .*: cannot tell: base or new is a part of a run .*", said)
    assert said.count("cannot tell") == 1, "gates of one reason share it"
    seeded = write_made_run(tmp_path / "seeded", 20, seed=7)
    assert "but" not in answer(compare_runs([paths["usual"], seeded])).line.text
    larger = write_made_run(tmp_path / "larger", 22, seed=7, model="large")
    assert answer(compare_runs([paths["usual"], larger])).line.text.endswith(
        "but: different models: tiny and large · exit 0"
    )


SCALES = {"usual": 1.0, "slow": 1.5}


def test_a_gate_without_samples_is_exit_code_1_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = (write_made_run(tmp_path / name, 1, n=50, slo="") for name in ("base", "new"))
    assert run(base, new, "--gate", "goodput>=-1%") == 1
    assert "goodput>=-1%  BROKEN: no samples, base has no value for goodput" in capsys.readouterr().out


def test_options_that_are_not_load_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("gpus", "out", "gate", "upload", "note")
    kept = [write_made_run(tmp_path / v, 1, n=50, options=dict.fromkeys(names, v)) for v in ("4", "8")]
    assert run(*kept) == 0
    text = capsys.readouterr().out
    assert "different --gpus: 4 and 8" in text
    assert not [name for name in names[1:] if f"--{name}" in text]


def test_limits_window_and_warmup_are_those_asked_for(runs: dict[str, Path]) -> None:
    outcome = compare_runs([runs["base"], runs["same"]], Question(slo="ttft=1s", warmup_s=20.0))
    assert outcome.slo.limits == {"ttft": 1.0}
    assert {round(r.compared.window.seconds) for r in outcome.runs} == {40}
    assert "judged by ttft ≤ 1000 ms" in printed(outcome)


@pytest.mark.parametrize("how", [["--json"], ["--format", "json"]])
def test_json_has_every_figure_in_its_unit(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], how: list[str]
) -> None:
    assert run(runs["base"], runs["slow"], *how, "--gate", "p50_ttft<=+5%") == 1
    data = json.loads(capsys.readouterr().out)
    (comparison,) = data["comparisons"]
    rows: dict[str, Any] = {row["metric"]: row for row in comparison["rows"]}
    p50 = rows["p50_ttft"]
    assert p50["unit"] == "ms"
    assert 40 < p50["base"] < 60 < p50["new"] < 90
    assert p50["verdict"] == "worse"
    assert p50["difference"] == pytest.approx(p50["new"] - p50["base"])
    assert p50["change"] == pytest.approx(p50["new"] / p50["base"] - 1)
    low, high = p50["change_interval"]
    assert 0 < low < p50["change"] < high
    assert rows["error_rate"]["change"] is None
    assert (data["schema"], data["joint_confidence"]) == (1, 0.95)
    assert [gate["state"] for gate in data["gates"]] == ["broken"]
    assert [r["label"] for r in data["runs"]] == ["base", "slow"]


@pytest.mark.parametrize("asked", [{"where": "name==chat"}, {"gates": "rps>1"}, {"by": ("replica",)}])
def test_what_a_comparison_does_not_answer_is_refused(runs: dict[str, Path], asked: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="SLO, a window and a warm-up"):
        compare_runs([runs["base"], runs["slow"]], Question(**asked))


def test_a_sweep_is_refused_with_the_commands_that_take_one(
    tmp_path: Path, runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_made_run(tmp_path / "sweep", 5, n=60, options={"sweep": "users=1,2"})
    said = refused(capsys, sweep, runs["base"])
    assert "is a sweep" in said
    assert "--pareto" in said
    assert "--window" not in said


def test_several_runs_are_put_in_the_order_of_their_starts(runs: dict[str, Path]) -> None:
    outcome = compare_runs(
        [runs["slow"], runs["base"], runs["same"]], gates=parse_relative_gates("p50_ttft<=+5%")
    )
    assert [r.label for r in outcome.runs] == ["base", "same", "slow"]
    assert outcome.exit_code == 1
    text = printed(outcome)
    assert max(map(len, text.splitlines())) <= 80
    assert "▲" not in line_of(text, "same ")
    assert line_of(text, "slow ").count("▲") >= 2
    assert "same: no difference beyond noise" in text
    assert "slow: worse: TTFT mean" in text
    assert "2026-" in line_of(printed(outcome, 140), "slow ")


def test_the_page_loads_nothing_and_has_the_script_once(runs: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "compare.html"
    assert run(runs["base"], runs["slow"], "--html", file) == 0
    text = file.read_text()
    assert "default-src 'none'" in unescape(text)
    assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"'](?!data:)", text)
    assert text.count('id="plotly"') == 1
    assert len(text) < 1_100_000
    charts = payload(text)["charts"]
    assert [chart["id"] for chart in charts] == ["cdf-ttft", "cdf-tpot", "cdf-e2el"]
    assert all(chart["x"]["log"] and len(chart["series"]) == 2 for chart in charts)


def payload(text: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_a_curve_is_the_distribution_of_its_run(runs: dict[str, Path]) -> None:
    outcome = pair(runs, "base", "slow")
    columns = payload(page(outcome).decode())["charts"][0]["data"][0]["columns"]
    median = columns["at or below (%)"].index(50)
    rows = {row.metric.name: row for row in outcome.comparisons[0].rows}
    p50 = rows["p50_ttft"]
    assert p50.base is not None
    assert p50.new is not None
    assert columns["base: base (ms)"][median] == pytest.approx(p50.base * 1e3, rel=1e-4)
    assert columns["new: slow (ms)"][median] == pytest.approx(p50.new * 1e3, rel=1e-4)


def test_the_page_of_several_runs_shows_figures_over_time(runs: dict[str, Path]) -> None:
    charts = {c["id"]: c for c in payload(page(compare_runs(list(runs.values()))).decode())["charts"]}
    columns = charts["trend-p50-ttft"]["data"][0]["columns"]
    assert columns["hours after the first run"] == [0, 1, 2]
    assert columns["run"] == ["base", "same", "slow"]
    for low, value, high in zip(*(columns[f"TTFT p50{end}"] for end in (" low", "", " high")), strict=True):
        assert low < value < high
    kinds = [each["kind"] for each in charts["trend-p50-ttft"]["series"]]
    assert kinds[:3] == ["line", "bound", "bound"], "the ends of intervals are in no legend"
    assert [len(charts[f"cdf-{metric}"]["series"]) for metric in ("ttft", "tpot", "e2el")] == [3, 3, 3]


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    hostile = tmp_path / "<img onerror=x>\x1b[31m"
    base = write_made_run(hostile, 1, n=60, model=EVIL, host=EVIL, options={EVIL: EVIL})
    outcome = compare_runs([base, write_made_run(tmp_path / "new", 2, n=60)])
    html = page(outcome).decode()
    assert "<script>alert" not in html
    assert "<img onerror" not in html
    assert "&lt;script&gt;alert" in html
    (series, _) = payload(html)["charts"][0]["series"]
    assert series["name"] == "base: <img onerror=x>"  # the page's script keeps plotly from reading tags in it
    md = markdown_of("Comparison of runs", [], sections(outcome))
    assert all("<script>" not in re.sub(r"(`+).*?\1", "", line) for line in md.splitlines())
    assert "\x1b" not in printed(outcome) + md + html


def test_what_cannot_be_compared_is_one_line_and_exit_code_2(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base, new = runs["base"], runs["same"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "is not a directory" in refused(capsys, base, tmp_path / "nowhere")
    assert f"holds no {MANIFEST_FILE}" in refused(capsys, base, empty)
    assert 'unknown metric; did you mean "p99_ttft"?' in refused(capsys, base, new, "--gate", "p9_ttft<=+5%")
    assert "unknown metric" in refused(capsys, base, new, "--slo", "tftt=1s")
    assert "no finished request in its window" in refused(capsys, base, new, "--warmup", "2m")
    copy = shutil.copytree(base, tmp_path / "copy")
    assert f"'{base}' and '{copy}' are the same run, base: compare it with another one" in refused(
        capsys, base, copy
    )
    assert "cannot be written" in refused(capsys, base, new, "--html", tmp_path / "no" / "file.html")


def test_a_broken_run_is_one_line_and_exit_code_2(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = write_made_run(tmp_path / "broken", 1, n=60)
    (broken / REQUESTS_FILE).write_bytes(b"no Parquet")
    assert "cannot be read as requests" in refused(capsys, runs["base"], broken)
    later = write_made_run(tmp_path / "later", 1, n=60)
    manifest = json.loads((later / MANIFEST_FILE).read_text())
    (later / MANIFEST_FILE).write_text(json.dumps(manifest | {"schema": 99}))
    assert "use the llm-locust that wrote it" in refused(capsys, runs["base"], later)
    without = write_made_run(tmp_path / "without", 1, n=0)
    assert "no finished request in its window" in refused(capsys, runs["base"], without)


@pytest.mark.parametrize("words", [["--warmup", "5"], ["--window", "most"], ["--format", "x"]])
def test_a_wrong_option_is_named(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    with pytest.raises(SystemExit) as e:
        run(runs["base"], runs["same"], *words)
    assert e.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_runs_with_more_gpus_show_what_each_of_them_gave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {1: 1_000, 2: 1_900, 4: 3_200}
    paths = [
        write_made_run(tmp_path / f"{gpus}", gpus, n=n, options={"gpus": f"{gpus}"})
        for gpus, n in sizes.items()
    ]
    outcome = compare_runs(paths)
    found = scaled(outcome)["output_tps"]
    assert [entry.gpus for entry in found] == [1, 2, 4]
    assert [entry.efficiency for entry in found] == pytest.approx([1, 0.95, 0.8], rel=0.01)
    for width in (80, 140):
        told = printed(outcome, width).split("\nScaling\n")[1].splitlines()
        assert max(map(len, told)) <= width
        assert [line.split()[0] for line in told[2:5]] == ["1", "2", "4"]
        assert told[4].split()[1:5] == ["319", "79.8", "79.9", "%"]
    assert run(*paths, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out)["scaling"]["output_tps"][2]["gpus"] == 4


@pytest.fixture(scope="module")
def runs_of_compare_pareto(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [write_made_run(folder / name, seed, n=200) for seed, name in enumerate(("few", "many"), 1)]


def pareto(*words: object) -> int:
    return main(["compare", *map(str, words), "--pareto"])


def test_each_point_is_of_its_runs_own_summary_and_the_page_has_the_same_as_a_csv(
    runs_of_compare_pareto: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pareto.html"
    assert pareto(*runs_of_compare_pareto, "--gpus", 4, "--html", page) == 0
    printed = capsys.readouterr().out
    rows = list(csv.DictReader((tmp_path / "pareto.html.csv").read_text().splitlines()))
    assert [row["run"] for row in rows] == ["few", "many"]
    for row, path in zip(rows, runs_of_compare_pareto, strict=True):
        summary = analyse(Source.of(path), Question()).summary
        tpot_ms, per_s = summary.latency_ms["tpot"].figure("p50"), summary.throughput.output_tokens_per_s
        assert tpot_ms
        assert per_s
        assert float(row["user_tokens_per_s"]) == pytest.approx(1e3 / tpot_ms)
        assert float(row["gpu_output_tokens_per_s"]) == pytest.approx(per_s / 4)
    best = max(rows, key=lambda row: float(row["gpu_output_tokens_per_s"]))
    assert best["is_best"] == "True"
    assert max(map(len, printed.splitlines())) <= 80
    assert "best" in printed
    text = page.read_text()
    assert '"id":"pareto"' in text.replace(" ", "")
    assert "default-src &#39;none&#39;" in text, "it loads nothing"


def test_a_run_without_gpus_is_refused_with_what_to_give(
    runs_of_compare_pareto: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pareto(*runs_of_compare_pareto) == 2
    assert "does not say how many GPUs it had: give --gpus N for all runs" in capsys.readouterr().err


def test_what_the_points_do_not_have_is_refused(
    runs_of_compare_pareto: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert pareto(*runs_of_compare_pareto, "--gpus", 4, "--gate", "p50_ttft<=+5%") == 2
    assert "--pareto takes no --gate" in capsys.readouterr().err
