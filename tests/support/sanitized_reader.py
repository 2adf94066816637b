"""pytest's plugin that puts another build of the reader of sockets in the place of the installed one.

``READER_BUILD`` names it: one with a sanitizer.
"""

import importlib.machinery
import importlib.util
import os
import sys

NAME = "llm_locust.client._reader"
loader = importlib.machinery.ExtensionFileLoader(NAME, os.environ["READER_BUILD"])
spec = importlib.util.spec_from_file_location(NAME, os.environ["READER_BUILD"], loader=loader)
assert spec is not None
module = importlib.util.module_from_spec(spec)
loader.exec_module(module)
sys.modules[NAME] = module
