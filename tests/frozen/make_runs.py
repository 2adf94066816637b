"""Make the run directories in ``runs``: short real runs against the simulator, a few hundred requests each.

    PYTHONPATH=tests:tests/support .venv/bin/python tests/frozen/make_runs.py [NAME ...]

They were made once. A client that waits for a core is another run: on a machine that others use, begin the
command with `chrt -r 5`. Make a run anew only for what one of today has and that one has not, as all of its
figures change. Then `make frozen`.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, SIGKILL
from tempfile import TemporaryDirectory

from chaos import wait_batches, wait_more
from frozen_texts import RUNS
from swarm_process import as_worker, free_port, locust, simulation, swarm

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
LOCUSTFILES = ROOT / "locustfiles"

#: Of every run that says nothing else. A question has 40 tokens, an answer 8, within some 120 ms.
USUAL = (
    *("--headless", "--out", "run", "-r", "100", "-t", "6s", "--seed", "7", "--warmup", "1s"),
    *("--input-tokens", "40", "--output-tokens", "8", "--body", '{"ignore_eos": true}'),
)
SHAPE = (ROOT / "examples" / "models" / "llama-3-8b.yaml").read_text()
UNHURRIED = ("--ttft-base", "20ms", "--step-base", "12ms")
LIMITS = ("--slo", "ttft=100ms tpot=20ms", "--gate", "goodput>=90% p99_ttft<200ms")

#: What a run directory has that is no fact of the run but made of them.
MADE = re.compile(r"(report\.(md|html)|summary\.json|(timeseries|stages|repeats|curve|arms)\.csv|junit\.xml)")

#: Of every locustfile: a worker's id begins with the name of its host, which is no fact of these runs.
NAMELESS = 'import socket\n\nsocket.gethostname = lambda: "host"\n\n'

LATE_CLIENT = """
import time
from gevent.monkey import get_original
from locust import task
from llm_locust import ChatUser

hold = get_original("time", "sleep")

class Busy(ChatUser):
    @task
    def ask_one(self):
        self.chat()
        hold(0.02)  # the event loop, in which the other users' answers wait
"""

STEPPED_CLOCK = """
import time
from locust import task
from llm_locust import ChatUser

true_ns, began_ns = time.time_ns, time.monotonic_ns()
time.time_ns = lambda: true_ns() + (2_500_000_000 if time.monotonic_ns() - began_ns > 5_000_000_000 else 0)

class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()
"""

OWN_REQUESTS = """
from locust import HttpUser, constant, task
from llm_locust import ChatUser

class Chat(ChatUser):
    @task
    def ask_one(self):
        self.chat()

class Looks(HttpUser):
    fixed_count = 1
    wait_time = constant(0.1)

    @task
    def look(self):
        self.client.get("/health", name="health")
        self.client.get("/nothing", name="nothing")
"""

CLASSES = """
gate: error_rate<5% images_per_s>1
slo: ttft=100ms
classes:
  chat:
    weight: 4
    models: {sim: 2, lora-a: 1}
    slo: ttft=60ms tpot=13ms
  search: {endpoint: responses, weight: 2, validators: [{max_repetition: 0.2}]}
  photo: {images: {count: "uniform:1,2", size: 64x320}}
  quiz: {dataset: quiz.jsonl, expected: exact, output_tokens: 6}
  whole: {stream: false, weight: 2}
"""

QUIZ = "".join(
    json.dumps({"id": f"q{i}", "prompt": f"question {i}", "expected": {"regex": "[ae]" if i % 2 else "zz"}})
    + "\n"
    for i in range(5)
)

LISTS = """
gate: inputs_per_s>20
slo: e2el=200ms
classes:
  index: {endpoint: embeddings, inputs: 4, body: {encoding_format: base64, dimensions: 8}}
  search: {endpoint: embeddings, input_tokens: "uniform:5,20", weight: 3}
  rank: {endpoint: rerank, inputs: 5, body: {top_n: 2}}
"""

TALKS = """
headers: {X-Session-Id: "{session}"}
classes:
  talk:
    conversation: {turns: "uniform:2,5", think_time: 100ms, patience: "lognormal:40ms,0.3"}
    slo: ttft=100ms
  tenant:
    weight: 2
    conversation: {turns: 3, think_time: 50ms}
"""

ARMS = """
arms:
  straight: {{url: "{0}"}}
  gateway: {{url: "{1}", share: 0.5}}
  again: {{url: "{0}", body: {{temperature: 0}}}}
"""


@dataclass(frozen=True)
class Plan:
    """A run of one command: the simulator's options, the run's, and files that it reads."""

    options: Sequence[str] = ()
    sim: Sequence[str] = ()
    locustfile: str = "chat.py"
    files: tuple[tuple[str, str], ...] = ()
    scraped: bool = False
    replicas_told: bool = False
    ctrl_c_after: int | None = None  # requests; then Ctrl-C

    def __call__(self, folder: Path) -> None:
        for name, text in self.files:
            (folder / name).write_text(text)
        locustfile = nameless(folder, self.locustfile)
        with simulation(folder, *UNHURRIED, *self.sim) as sim:
            more = [word for url in sim.replicas for word in ("--metrics-url", f"{url}/metrics")]
            more = [*more, "--metrics-interval", "500ms"] if self.scraped else []
            more += ["--replica-url", ",".join(sim.replicas)] if self.replicas_told else []
            with locust(
                folder,
                *(*USUAL, "-u", "6", *self.options, *more, "-H", sim.url),
                locustfile=locustfile,
                environ={"LLM_LOCUST_CANARY": "on"},
            ) as process:
                if self.ctrl_c_after is not None:
                    sim.wait_entries(self.ctrl_c_after)
                    process.signal(SIGINT)
                code = process.exit_code()
                print(f"exit {code}" if code != 2 else process.stderr)


def nameless(folder: Path, locustfile: str = "chat.py") -> Path:
    """Write a locustfile (one that lies in the folder, else one of ours) without its host's name."""
    path = folder / locustfile
    text = (path if path.exists() else LOCUSTFILES / locustfile).read_text()
    path.write_text(NAMELESS + text)
    return Path(locustfile)


def _arms(folder: Path) -> None:
    with (
        simulation(folder / "a", *UNHURRIED) as straight,
        simulation(folder / "b", *UNHURRIED, "--ttft-base", "30ms", "--faults", "http_500=3%") as gateway,
    ):
        (folder / "arms.yaml").write_text(ARMS.format(straight.url, gateway.url))
        options = ("--scenario", "arms.yaml", "-u", "6", *LIMITS, "-t", "8s")
        locustfile = nameless(folder, "scenario.py")
        with locust(folder, *USUAL, *options, locustfile=locustfile) as process:
            print(f"exit {process.exit_code()}")


def _killed(folder: Path) -> None:
    """Three workers, of which one is killed and one joins late."""
    port = free_port()
    options = [*USUAL, "-u", "9", "-t", "14s", "--slo", "ttft=100ms tpot=40ms", "--gate", "goodput>=90%"]
    with (
        simulation(folder, "--step-base", "25ms") as sim,
        swarm(folder, 2, *options, "-H", sim.url, port=port, locustfile=nameless(folder)) as (
            master,
            workers,
        ),
    ):
        wait_batches(folder / "run", workers=2)
        with locust(folder, *as_worker(port), stdout="late", locustfile=nameless(folder)) as late:
            wait_more(sim)
            workers[1].signal(SIGKILL)
            print(f"exit {master.exit_code()}")
            late.exit_code()


def _soak(folder: Path) -> None:
    """A master that is killed, its next, and a Ctrl-C."""
    port = free_port()
    options = [
        *("--headless", "-u", "6", "-r", "100", "-t", "600s", "--out", "run", "--restartable", "--seed", "7"),
        *(
            "--input-tokens",
            "10",
            "--output-tokens",
            "8",
            "--body",
            '{"ignore_eos": true}',
            "--slo",
            "e2el=1s",
        ),
        *("--master", "--master-bind-host", "127.0.0.1", "--master-bind-port", str(port)),
        *("--expect-workers", "2", "--gate", "p99_ttft<400ms"),
    ]
    file = nameless(folder)
    with ExitStack() as stack:
        sim = stack.enter_context(simulation(folder, "--step-base", "25ms"))
        master = stack.enter_context(locust(folder, *options, "-H", sim.url, locustfile=file))
        workers = [
            stack.enter_context(locust(folder, *as_worker(port), stdout=f"w{i}", locustfile=file))
            for i in range(2)
        ]
        wait_batches(folder / "run" / "part-1", workers=2)
        master.signal(SIGKILL)
        master.exit_code()
        again = stack.enter_context(locust(folder, *options, "-H", sim.url, stdout="again", locustfile=file))
        wait_batches(folder / "run" / "part-2", workers=2)
        wait_more(sim)
        again.signal(SIGINT)
        print(f"exit {again.exit_code()}")
        for worker in workers:
            worker.exit_code()


def _unfinished(folder: Path) -> None:
    """A run of one process that was killed: its batches are in no requests.parquet."""
    with (
        simulation(folder, *UNHURRIED) as sim,
        locust(folder, *USUAL, "-u", "4", "-t", "60s", "-H", sim.url, locustfile=nameless(folder)) as process,
    ):
        wait_batches(folder / "run", workers=1, each=2)
        process.signal(SIGKILL)
        process.exit_code()


def _trace() -> str:
    lines = (
        {"timestamp": 20 * i, "input_length": 40 + i % 7, "output_length": 3 + i % 5, "hash_ids": [i % 3]}
        for i in range(300)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def _tasks() -> str:
    """Two recorded tasks of agents, one with a sub-agent."""

    def turn(of: str, number: int, **more: object) -> dict[str, object]:
        messages = [{"role": "system", "content": "You are an agent. " * 10}]
        for i in range(number):
            messages += [
                {"role": "user", "content": f"{of} asks {i} " * 8},
                {"role": "assistant", "content": f"{of} hears {i} " * 4},
            ]
        messages.append({"role": "user", "content": f"{of} asks {number} " * 8})
        return {"conversation_id": of, "messages": messages, "target_output_tokens": 3 + number, **more}

    lines = [
        *(turn("main", 0, pause_ms_after=30), turn("main", 1, pause_ms_after=120), turn("main", 2)),
        *(turn("left", 0, parent="main", after_turn=0, pause_ms_after=50), turn("left", 1)),
        *(turn("other", 0, pause_ms_after=70), turn("other", 1)),
    ]
    return "".join(json.dumps(line) + "\n" for line in lines)


OPEN = ("--request-rate", "40", "-u", "1")
FAULTS = (
    "http_500=3% http_429=2% close_before=1% reset=1% cut=2% garbage=1% error_object=1% empty=1% stall=0.5%"
)
REPLICAS = ("--replicas", "3", "--replica-ports", "0")
SCENARIO = ("--scenario", "run.yaml")

PLANS: dict[str, Callable[[Path], None]] = {
    "chat": Plan(
        (*LIMITS, "--gpus", "2", "--gpu-hour-cost", "2.5", "--gpu-type", "h100", "--model-shape", "m.yaml"),
        files=(("m.yaml", SHAPE),),
    ),
    "chat-again": Plan((*LIMITS, "--seed", "8")),
    "chat-slower": Plan(LIMITS, sim=("--step-base", "18ms", "--faults", "http_503=2%")),
    "completions": Plan((*LIMITS, "--num-requests", "200"), locustfile="completions.py"),
    "responses-open": Plan(
        (*OPEN, *SCENARIO, *LIMITS),
        locustfile="scenario.py",
        files=(("run.yaml", "endpoint: responses\n"),),
    ),
    "messages": Plan(("--connection-reuse", "off", "-t", "4s"), locustfile="messages.py"),
    "embeddings-rerank": Plan(SCENARIO, locustfile="scenario.py", files=(("run.yaml", LISTS),)),
    "not-streamed": Plan(
        (*SCENARIO, "--gate", "p95_e2el<200ms"),
        locustfile="scenario.py",
        files=(("run.yaml", "stream: false\n"),),
    ),
    "classes": Plan(
        (*SCENARIO, "--model", "sim"),
        ("--model", "sim", "--model", "lora-a"),
        locustfile="scenario.py",
        files=(("run.yaml", CLASSES), ("quiz.jsonl", QUIZ)),
    ),
    "conversations": Plan(
        (*SCENARIO, "-u", "8", "-t", "7s"),
        (*REPLICAS, "--routing", "sticky", "--prefix-cache", "on"),
        locustfile="scenario.py",
        files=(("run.yaml", TALKS),),
        scraped=True,
    ),
    "agents": Plan(
        ("--trajectories", "tasks.jsonl", "--session-header", "cookie:session", *LIMITS),
        ("--prefix-cache", "on", "--session-header", "cookie:session"),
        locustfile="agents.py",
        files=(("tasks.jsonl", _tasks()),),
    ),
    "trace": Plan(
        ("--arrival", "trace:trace.jsonl", "--warmup", "0s", *LIMITS),
        locustfile="replay.py",
        files=(("trace.jsonl", _trace()),),
    ),
    "overload": Plan(
        ("--request-rate", "50", "-u", "1", "-t", "8s", *LIMITS, "--drain", "2s"),
        ("--replicas", "1", "--max-num-seqs", "4"),
        locustfile="open_loop.py",
    ),
    "spike": Plan(
        ("--request-rate", "spike:10,150,3s,1500ms", "-u", "1", "-t", "9s", *LIMITS),
        ("--replicas", "1", "--max-num-seqs", "8"),
        locustfile="open_loop.py",
    ),
    "failures": Plan(
        (*LIMITS, "--timeouts", "first=1s gap=1s", "-u", "6"), ("--faults", FAULTS, "--stall", "30s")
    ),
    "refused": Plan(
        ("--canary", "off", "--backoff", "off", "--num-requests", "120", "--warmup", "0s", *LIMITS),
        ("--faults", "http_401=100%"),
    ),
    "nothing-measured": Plan((*LIMITS, "--num-requests", "20")),
    "hung-users": Plan(
        ("--slo", "e2el=500ms", "-u", "8", "--drain", "500ms", "--gate", "goodput>=90%"),
        ("--faults", "stall=1.5%"),
    ),
    "slow-replica": Plan(
        ("-u", "6", *LIMITS, "-t", "8s"),
        (*REPLICAS, "--replica-speed", "1=4x", "--plan", "5s kill 2; 6500ms start 2"),
        scraped=True,
    ),
    "prefill-decode": Plan(
        ("-u", "6", *LIMITS, "--gate", "kv_transfer_failures<5%"),
        (*REPLICAS, "--prefill-replicas", "1", "--kv-transfer", "60ms", "--faults", "kv_transfer=10%"),
        scraped=True,
    ),
    "late-client": Plan(("-u", "8", *LIMITS), locustfile="busy.py", files=(("busy.py", LATE_CLIENT),)),
    "clock-step": Plan(
        ("--stamps", "program", "-t", "7s"), locustfile="stepped.py", files=(("stepped.py", STEPPED_CLOCK),)
    ),
    "own-requests": Plan(
        (
            "-t",
            "4s",
        ),
        locustfile="own.py",
        files=(("own.py", OWN_REQUESTS),),
    ),
    "interrupted": Plan(("-t", "60s", "-u", "2"), ctrl_c_after=150),
    "sweep": Plan(
        (
            *("--sweep", "users=1,2,4,8,16", "--stage-time", "2s", "--warmup", "500ms", "-t", "60s"),
            *("--slo", "ttft=100ms tpot=20ms", "--gpus", "2"),
        ),
        ("--replicas", "1", "--max-num-seqs", "8"),
    ),
    "repeats": Plan(
        (
            *("--sweep", "rate=10,40", "--repeat", "3", "--stage-time", "1500ms", "--warmup", "500ms"),
            *("--slo", "ttft=100ms", "-t", "60s"),
        ),
        locustfile="open_loop.py",
    ),
    "search": Plan(
        (
            *("--find", "max concurrency under p50_tpot<48ms", "--first-load", "2", "--max-stages", "5"),
            *("--stage-time", "3s", "--warmup", "500ms", "--output-tokens", "3", "--gate", "edge>=2"),
            *("-t", "120s"),
        ),
        ("--replicas", "1", "--step-base", "6ms", "--step-per-seq", "12ms"),
    ),
    "prefix-sweep": Plan(
        (
            *("--sweep", "rate=8 prefix-share=0%,50%,80% prefixes=3", "--stage-time", "3s", "-t", "60s"),
            *("--warmup", "500ms", "--input-tokens", "256", "--output-tokens", "4"),
        ),
        (*REPLICAS, "--prefix-cache", "on"),
        replicas_told=True,
        locustfile="open_loop.py",
    ),
    "arms": _arms,
    "worker-killed": _killed,
    "soak": _soak,
    "unfinished": _unfinished,
}


def keep(run: Path, name: str) -> None:
    """Keep the facts of a run: what nothing else is made of."""
    kept = RUNS / name
    if kept.exists():
        shutil.rmtree(kept)
    for path in sorted(run.rglob("*")):
        if path.is_file() and not MADE.fullmatch(path.name):
            to = kept / path.relative_to(run)
            to.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".json":  # the command has the path of Locust
                to.write_text(re.sub(r'"/[^"]*/site-packages/', '"', path.read_text()))
            else:
                shutil.copyfile(path, to)


def main(names: Sequence[str]) -> None:
    for name in names or PLANS:
        print(name, end=" ", flush=True)
        with TemporaryDirectory() as made:
            PLANS[name](Path(made))
            keep(Path(made) / "run", name)


if __name__ == "__main__":
    main(sys.argv[1:])
