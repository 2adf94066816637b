"""The code blocks of README.md and docs/, and what is changed in them so that they run here.

A page is one session in one folder: its blocks run in order, and one may use what an earlier one made. An
HTML comment above a block says what is special about it::

    <!-- not run: needs a cluster -->
    <!-- exit code: 1 -->

The reasons for which a block is not run are :data:`REASONS`, and all changes are :data:`CHANGES`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from warm_process import PRELOADED, keep_warm, warm_place

ROOT = Path(__file__).parents[2]
#: All pages but the reports on Locust itself.
PAGES = (
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "upstream"),
)

#: Why a block cannot run in a test. A block that could must not be here.
REASONS = frozenset(
    {
        "installs packages",
        "needs a cluster",
        "needs a collector of OpenTelemetry",
        "needs several machines",
    }
)

#: Languages of blocks that are run, and of those that are read.
SHELL, PYTHON = "sh", "python"
READ = frozenset({"diff", "html", "json", "text", "toml", "yaml", "ini", "nginx"})

#: Pattern -> what it becomes in a shell block: small loads, short runs, the simulator instead of a server.
#: ``{url}`` is the simulator's gateway, ``{replicas}`` its replicas' own addresses, ``{prefill}`` and
#: ``{decode}`` the first and the last of them.
CHANGES: tuple[tuple[str, str], ...] = (
    (r"https?://(HOST:PORT|(HOST|localhost|127\.0\.0\.1):8[04]00|gateway(?=[\s\"/]))", "{url}"),
    (r"(prefill|decode)=dns\+http://[\w.-]+:\d+/metrics", r"\1={\1}/metrics"),
    (r"dns\+http://[\w.-]+:\d+/metrics|http://[\w.-]+:8000/metrics", "{url}/metrics"),
    (r"--(targets|replica-url) dns\+http://\S+", r"--\1 {replicas}"),
    (r"--expect-replicas \d+", "--expect-replicas 2"),
    (r"--model (NAME|MODEL)", "--model sim"),
    (r"(?<=\s)(-u|--users) \d+", r"\1 2"),
    (r"(?<=\s)(-r|--spawn-rate) \d+", r"\1 2"),
    (r"--rate \d+", "--rate 20"),
    (r"--replica-ports \d+", "--replica-ports 0"),
    (r"http://gpu-host:9400/metrics", "{url}/gpu/metrics"),
    (r"/mnt/spools/\*", "runs/demo"),
    (r"(?<=\s)(-t|--run-time|--for) \d+[smh]\b", r"\1 1s"),
    (r'--rate "steps:[^"]*" --for \S+', '--rate "steps:10@1s,20@1s,30@1s" --for 3s --warmup 100ms'),
    (r'--rate "spike:[^"]*" --for \S+', '--rate "spike:20,40,1s,1s" --for 3s --warmup 100ms'),
    (r'(--find "[^"]*")', r"\1 --warmup 300ms"),
    (r"--sweep (users|rate)=\S+", r"--sweep \1=10,20 --warmup 300ms"),
    (r"--stage-time \d+[smh]\b", "--stage-time 1s"),
    (r"--max-stages \d+", "--max-stages 2"),
    (r"--warmup \d+[smh]\b", "--warmup 300ms"),
    # Limits of a thousand times: no page judges the speed of this machine.
    (r"\b((?:p\d+_|mean_)?(?:ttft|tpot|ttfo|e2el|itl)(?:=|<=?)\d+)ms", r"\1s"),
    (r"--window \S+", "--window 0s-1s"),
    (r"--workers \d+", "--workers 2"),
    # Short answers, or a run of a second waits for several more until its last ones are over.
    (r"(?m)^(llm-locust (?:run|sweep) )(?!.*(?:lengths=|--output-tokens|trace:))", r"\1--output-tokens 16 "),
    (r"\| kubectl apply -f -", "> manifests.yaml"),
    (r"(?m)^llm-locust sim(.*?)(--port \d+)?(?=\s|$)", r"serve llm-locust sim --port 0\1"),
    (r"(?m)^(serve .*?) --port [1-9]\d*", r"\1"),
    (r"(?m)( --ui .*)$", r"\1 -- --autostart --autoquit 0"),
)

#: Runs that pages use and do not make: the name -> a pattern, of which the first page's oldest run is taken.
_FIRST, _SECOND = ("base", "first", "demo", "idle", "soak"), ("new", "second")
EXAMPLE_RUNS = dict.fromkeys(_FIRST, "first") | dict.fromkeys(_SECOND, "2*")

#: Where a page's Python is saved. Its commands have it under this name.
OWN = "support.py"

_PRELUDE = """set -euo pipefail
serve() {  # starts a server that runs until the end of the block, and waits until it listens
    "$@" >served.log 2>&1 & servers+=($!)
    until grep -q "listening on" served.log; do kill -0 "$!" || { cat served.log; exit 1; }; sleep 0.05; done
    cat served.log
}
servers=()
end() { code=$?; [ ${#servers[@]} = 0 ] || kill "${servers[@]}"; wait; exit "$code"; }
trap end EXIT
"""

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- (?P<key>not run|exit code): (?P<value>[^>]*) -->\n *$")
_FAILED_GATES = re.compile(r"\bgates? failed\b")
_EMPTY = re.compile(r"^Requests +0 scheduled", re.MULTILINE)
_USERS = re.compile(r"^class \w+\(\w*User\w*\)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A code block.

    Attributes:
        place: ``PAGE:LINE`` of its first line.
        reason: why it is not run; None where it is.
        codes: the exit codes that it may have.
    """

    place: str
    language: str
    text: str
    reason: str | None = None
    codes: tuple[int, ...] = (0,)

    @property
    def is_locustfile(self) -> bool:
        return self.language == PYTHON and _USERS.search(self.text) is not None


def blocks(page: Path) -> Iterator[Block]:
    """The code blocks of a page, in order (ValueError: a comment above one that is not understood)."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        place = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 2}"
        body = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        mark = _MARK.search(text[: found.start()])
        reason: str | None = None
        codes: tuple[int, ...] = (0,)
        if mark is not None and mark["key"] == "not run":
            reason = mark["value"]
        elif mark is not None:
            codes = tuple(int(code) for code in mark["value"].split(" or "))
        yield Block(place, found["language"], body, reason, codes)


def changed(text: str, url: str, replicas: str) -> str:
    """A shell block as it runs here."""
    for pattern, replacement in CHANGES:
        filled = replacement.replace("{url}", url).replace("{replicas}", replicas)
        text = re.sub(pattern, filled, text)
    first, *_, last = replicas.split(",")
    return text.replace("{prefill}", first).replace("{decode}", last)


class Session:
    """The folder in which a page's blocks run.

    Args:
        folder: an empty one, as a reader's who has installed the package; what is made stays in it.
        first: the first page's session, whose runs later pages have; None for that page.
        url, replicas: of the simulated deployment.
        ports: of Locust's master, in the form of its environment variables.
    """

    def __init__(
        self, folder: Path, first: Self | None, url: str, replicas: str, ports: Mapping[str, str]
    ) -> None:
        self._folder, self._first, self._url, self._replicas = folder, first or self, url, replicas
        self._said: dict[str, str] = {}
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("LOCUST_", "LLM_LOCUST_"))}
        keep_warm(*PRELOADED)
        path = os.pathsep.join([str(warm_place()), str(Path(sys.executable).parent), os.environ["PATH"]])
        # Of a scenario, and of a command that says nothing.
        small = {"LOCUST_RUN_TIME": "1s", "LOCUST_USERS": "2"}
        small |= {"LLM_LOCUST_WARMUP": "0s", "LLM_LOCUST_DRAIN": "10s"}
        self._environ = inherited | {**ports} | small | {"PATH": path, "COLUMNS": "120"}
        self._environ["PYTHONPATH"] = str(ROOT)
        (folder / "runs").mkdir()

    def run(self, block: Block) -> str:
        """What a block printed (AssertionError: it failed). What the first page has run is not run again."""
        if block.text in self._first._said:
            for name in re.findall(r"--out runs/([\w-]+)", block.text):
                self._copy_run(name, name)
            return self._first._said[block.text]
        self._lay_out_runs(block.text)
        if block.language == SHELL:
            command = ["bash", "-c", _PRELUDE + changed(block.text, self._url, self._replicas)]
        else:
            (self._folder / OWN).write_text(block.text, encoding="utf-8")
            command = self._load(block) if block.is_locustfile else [sys.executable, OWN]
        code, said = self._outcome(command)
        where = f"{block.place}: exit code {code}\n{block.text}\n{said}"
        # Of a few seconds on a busy machine: few samples for a gate, none at all, or an invalid client.
        allowed = {*block.codes, *((1,) if _FAILED_GATES.search(said) else ())}
        allowed |= {3} if _EMPTY.search(said) or "--require-valid" in block.text else set()
        assert code in allowed, where
        assert "Traceback" not in said, where
        self._said[block.text] = said
        return said

    def _load(self, block: Block) -> list[str]:
        """A short load with a page's locustfile; with four requests, if it is for this package."""
        words = ["locust", "-f", OWN, "--headless", "--only-summary", "-H", self._url, "-u", "2"]
        if "llm_locust" not in block.text:
            return [*words, "-t", "1s"]
        words += ["-t", "120s", "--num-requests", "4", "--model", "sim"]
        if "AgentUser" in block.text:
            tasks = self._folder / "tasks.jsonl"
            tasks.write_text('{"messages": [{"role": "user", "content": "How are you?"}]}\n')
            words += ["--trajectories", str(tasks)]
        return [*words, "--output-tokens", "4", "--input-tokens", "20"]

    def _lay_out_runs(self, text: str) -> None:
        """Copies of the first page's runs that a block names, where no block has made them."""
        named = set(re.findall(r"\bruns/([\w-]+)", text)) - set(re.findall(r"--out runs/([\w-]+)", text))
        for name in named & EXAMPLE_RUNS.keys():
            self._copy_run(EXAMPLE_RUNS[name], name)

    def _copy_run(self, pattern: str, name: str) -> None:
        copy = self._folder / "runs" / name
        if not copy.exists():
            shutil.copytree(min((self._first._folder / "runs").glob(pattern)), copy)

    def _outcome(self, command: list[str]) -> tuple[int, str]:
        """Exit code and output. What it started is ended with it."""
        process = subprocess.Popen(
            command,
            cwd=self._folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            said += "\n(no end within 120 s)"
        return process.returncode, said
