"""The program podman."""

import subprocess

#: Longer than any of these runs takes.
PATIENCE_S = 240


def podman(*words: str, check: bool = True, given: str | None = None) -> str:
    """What podman prints."""
    done = subprocess.run(
        ["podman", *words], input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout


def remove_all(prefix: str) -> None:
    """Remove the pods, volumes, Secrets and networks whose names begin so, those of config maps' too.

    Podman refuses to remove a pod one of whose containers is just ending: it is tried again.
    """
    for kind, options in (
        ("pod", ("--force", "--time", "0")),
        ("volume", ("--force",)),
        ("secret", ()),
        ("network", ("--force",)),
    ):
        tries = 2
        while found := [name for name in _names(kind) if name.startswith(prefix)]:
            podman(kind, "rm", *options, *found, check=tries == 0)
            tries -= 1


def _names(kind: str) -> list[str]:
    return podman(kind, "ls", "--format", "{{.Name}}").split()
