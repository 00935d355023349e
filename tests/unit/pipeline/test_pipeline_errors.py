"""The tree of errors in the documentation equals the classes."""

from __future__ import annotations

import importlib
import pkgutil
import re

import onewriter_pipeline
from onewriter_pipeline import errors
from onewriter_pipeline.errors import PipelineError


def drawn(error: type[PipelineError], depth: int = 0) -> dict[str, int]:
    """An error and its subclasses, each with its depth below the root."""
    found = {error.__name__: depth}
    for each in error.__subclasses__():
        if each.__module__.startswith("onewriter_pipeline."):
            found |= drawn(each, depth + 1)
    return found


def test_every_error_of_the_pipeline_is_in_the_documented_tree() -> None:
    for module in pkgutil.walk_packages(onewriter_pipeline.__path__, "onewriter_pipeline."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    lines = re.findall(r"^    ([│├└─ ]*)(\w+)", errors.__doc__ or "", re.MULTILINE)
    assert {name: len(branches) // 4 for branches, name in lines} == drawn(PipelineError)
