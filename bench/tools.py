"""Other load generators as cases of the bench: each runs as its users run it, in an environment of its own.

``python bench/run.py --tool sglang=/path/to/python``. A tool keeps 400 streams going until so many requests
have ended, and prints its own figures. They are held against the server's log of all of its requests. CPU is
that of all its processes, some seconds after a quarter of the streams was under way.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from harness import (
    BenchError,
    Figures,
    Times,
    Truth,
    ask_truth,
    between,
    cpu_s,
    edge,
    last_words,
    running,
    serving,
)
from swarm import TOKENS, read_log, true_times
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

STREAMS, ROUNDS = 400, 8
SETTLE_S, WINDOW_S = 3.0, 5.0

#: The whole of sglang asks for a GPU's libraries; its client needs none of it.
SGLANG = """
import pathlib, sys, sysconfig, types
place = pathlib.Path(sysconfig.get_paths()["purelib"]) / "sglang"
for name, inside in (("sglang", ""), ("sglang.srt", "srt")):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(place / inside)]
from sglang.benchmark.rust_client import main
sys.exit(main())
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What a tool is asked for, and where it writes."""

    python: Path
    url: str
    folder: Path

    @property
    def tokenizer(self) -> Path:
        return self.folder / "tokenizer"


@dataclass(frozen=True, slots=True)
class Tool:
    """How to run one, and its own figures: times and output tokens per second."""

    command: Callable[[Load], list[str]]
    read: Callable[[Path], tuple[Times, float]]


def _sglang(load: Load) -> list[str]:
    options = f"--backend sglang-oai-chat --base-url {load.url} --model known --tokenizer {load.tokenizer}"
    options += f" --dataset-name random-ids --random-input-len 64 --random-output-len {TOKENS}"
    options += " --random-range-ratio 1 --warmup-requests 0 --disable-tqdm"
    options += f" --max-concurrency {STREAMS} --num-prompts {STREAMS * ROUNDS}"
    return [str(load.python), "-c", SGLANG, *options.split(), "--output-file", str(load.folder / "own.json")]


def _read_sglang(folder: Path) -> tuple[Times, float]:
    own = json.loads((folder / "own.json").read_text())
    times = Times(
        ttft_p50=own["median_ttft_ms"],
        ttft_p99=own["p99_ttft_ms"],
        tpot_p50=own["median_tpot_ms"],
        itl_p50=own["median_itl_ms"],
        itl_p99=own["p99_itl_ms"],
    )
    return times, own["output_throughput"]


def _aiperf(load: Load) -> list[str]:
    options = f"profile -m known --url {load.url} --endpoint-type chat --streaming --concurrency {STREAMS}"
    options += f" --request-count {STREAMS * ROUNDS} --tokenizer {load.tokenizer} --use-server-token-count"
    options += f" --synthetic-input-tokens-mean 64 --output-tokens-mean {TOKENS} --ui-type none"
    program = load.python.with_name("aiperf")
    return [str(program), *options.split(), "--artifact-dir", str(load.folder / "own")]


def _read_aiperf(folder: Path) -> tuple[Times, float]:
    own = json.loads((folder / "own" / "profile_export_aiperf.json").read_text())
    ttft, gap = own["time_to_first_token"], own["inter_token_latency"]
    # Its inter-token latency is the mean of each request: TPOT.
    times = Times(ttft_p50=ttft["p50"], ttft_p99=ttft["p99"], tpot_p50=gap["p50"])
    return times, own["output_token_throughput"]["avg"]


def _guidellm(load: Load) -> list[str]:
    prompts = load.folder / "prompts.jsonl"
    prompt = {"prompt": "How much is it? " * 16, "output_tokens_count": TOKENS}
    prompts.write_text((json.dumps(prompt) + "\n") * STREAMS * ROUNDS)
    options = f"run --backend kind=openai_http,target={load.url},model=known --disable-progress"
    options += f" --profile kind=concurrent,streams={STREAMS} --data kind=json_file,path={prompts}"
    options += f" --constraint kind=max_requests,count={STREAMS * ROUNDS}"
    program = load.python.with_name("guidellm")
    return [str(program), *options.split(), "--output", f"kind=json,path={load.folder / 'own.json'}"]


def _read_guidellm(folder: Path) -> tuple[Times, float]:
    (run,) = json.loads((folder / "own.json").read_text())["benchmarks"]
    ttft, gap, rate = (
        run["metrics"][name]["successful"]
        for name in ("time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second")
    )
    # Its inter-token latency is the mean of each request: TPOT.
    times = Times(ttft_p50=ttft["median"], ttft_p99=ttft["percentiles"]["p99"], tpot_p50=gap["median"])
    return times, rate["mean"]


def _inference_perf(load: Load) -> list[str]:
    stage = {"num_requests": STREAMS * ROUNDS, "concurrency_level": STREAMS}
    asked = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "mock"},
        "load": {"type": "concurrent", "stages": [stage], "num_workers": 2},
        "server": {"type": "vllm", "model_name": "known", "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(load.tokenizer)},
        "report": {"request_lifecycle": {"summary": True, "per_stage": False, "percentiles": [50, 99]}},
        "storage": {"local_storage": {"path": str(load.folder / "own")}},
    }
    file = load.folder / "inference-perf.yaml"
    file.write_text(json.dumps(asked))
    return [str(load.python.with_name("inference-perf")), "-c", str(file)]


def _read_inference_perf(folder: Path) -> tuple[Times, float]:
    own = json.loads((folder / "own" / "summary_lifecycle_metrics.json").read_text())["successes"]
    ttft, tpot, itl = (
        own["latency"][name]
        for name in ("time_to_first_token", "time_per_output_token", "inter_token_latency")
    )
    times = Times(
        ttft_p50=1000 * ttft["median"],
        ttft_p99=1000 * ttft["p99"],
        tpot_p50=1000 * tpot["median"],
        itl_p50=1000 * itl["median"],
        itl_p99=1000 * itl["p99"],
    )
    return times, own["throughput"]["output_tokens_per_sec"]


TOOLS: Mapping[str, Tool] = {
    "sglang": Tool(_sglang, _read_sglang),
    "aiperf": Tool(_aiperf, _read_aiperf),
    "guidellm": Tool(_guidellm, _read_guidellm),
    "inference-perf": Tool(_inference_perf, _read_inference_perf),
}


def make_tokenizer(folder: Path) -> None:
    """Make a small tokenizer: the tools ask for one, and there is no model. Each event is one token of it."""
    folder.mkdir()
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(initial_alphabet=ByteLevel.alphabet(), special_tokens=["<s>"], show_progress=False)
    tokenizer.train_from_iterator(["How much is it? It is a token token token"] * 5, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<s>"}
    settings["chat_template"] = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))


def family(pid: int) -> list[int]:
    """A process and all below it."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def measure_tool(name: str, python: Path, server: Sequence[str | Path], logs: Path) -> Figures:
    """Measure a tool of :data:`TOOLS`, whose environment has this interpreter."""
    tool, log = TOOLS[name], logs / "server.bin"
    make_tokenizer(logs / "tokenizer")
    with serving(server, logs, ["--log", log]) as port:
        load = Load(python, f"http://127.0.0.1:{port}", logs)
        with running(tool.command(load), logs / "tool.log") as process:
            _wait_for_streams(port, process.poll, logs)
            time.sleep(SETTLE_S)
            pids = family(process.pid)
            before_s = sum(map(cpu_s, pids))
            start = edge(port, [*pids, os.getpid()], "DELETE")
            time.sleep(WINDOW_S)
            used_s = sum(map(cpu_s, pids)) - before_s
            end = edge(port, [*pids, os.getpid()], "GET")
            if process.wait(timeout=180):
                raise BenchError(f"{name} ended with {process.returncode}: {last_words(logs / 'tool.log')}")
    times, tokens_per_s = tool.read(logs)
    window, others = between(start, end)
    written = read_log(log, TOKENS)
    seconds = (written.all_written_ns.max() - written.arrived_ns.min()) * 1e-9
    truth = Truth(
        times=true_times(written.arrived_ns, written.written_ns),
        tokens_per_s=len(written.all_written_ns) / seconds,
        cpu_percent=window.cpu_percent,
        lateness_us=window.lateness_us,
    )
    return Figures(
        client=name,
        streams=STREAMS,
        tokens_per_s=tokens_per_s,
        cpu_us_per_token=used_s * 1e6 / end.truth["tokens"] if end.truth["tokens"] else None,
        cpu_percent=100 * used_s / WINDOW_S,
        times=times,
        truth=truth,
        others_cpu_percent=others,
    )


def _wait_for_streams(port: int, poll: Callable[[], int | None], logs: Path) -> None:
    deadline_s = time.monotonic() + 180
    while ask_truth(port)["streams"] < STREAMS / 4:  # some never have all under way
        if poll() is not None:
            raise BenchError(f"it ended before its load: {last_words(logs / 'tool.log')}")
        if time.monotonic() > deadline_s:
            raise BenchError(
                f"no {STREAMS // 4} streams within three minutes: {last_words(logs / 'tool.log')}"
            )
        time.sleep(0.1)
