"""The reader of sockets in C. Everything else about the package is in pyproject.toml.

Without a compiler the package is installed all the same, and Python reads the sockets.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class BuildReader(build_ext):
    """Builds the reader, or says in one line that it could not."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as e:  # whatever a compiler, or its absence, raises
            reason = str(e).splitlines()[0]
            print(
                f"llm-locust: the reader in C was not built ({reason}); Python will read the sockets. "
                "A C compiler and Python's headers, then `pip install .` again, mend it.",
                file=sys.stderr,
            )


READER = Extension(
    "llm_locust.client._reader",
    ["llm_locust/client/_reader.c"],
    extra_compile_args=["-std=c11", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[READER] if sys.platform == "linux" else [],
    cmdclass={"build_ext": BuildReader},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if sys.platform == "linux" else {},
)
