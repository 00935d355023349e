"""Why a broker's process ended, written to the file that Kubernetes shows in the status of its pod.

The kubelet creates the file for each container, and reads it when the container has ended. The operator names its
content in the condition BrokersReady of the installation. Outside a container the file does not exist, and nothing is
written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import structlog

from onewriter_core.ids import escaped

FILE: Final = Path("/dev/termination-log")
"""Kubernetes' default of ``terminationMessagePath``."""

VARIABLE: Final = "ONEWRITER_TERMINATION_MESSAGE_FILE"
"""Environment variable with another path, which is read even if other settings are invalid."""

MESSAGE_BYTES_MAX: Final = 1_024
"""Longest message. Kubernetes keeps 4 KiB of each container, and 12 KiB of a pod."""

log = structlog.get_logger(__name__)


def termination_file(environment: Mapping[str, str] = os.environ) -> Path:
    """The file of this process's environment."""
    return Path(environment.get(VARIABLE) or FILE)


def write_termination_message(file: Path, text: str, *, replaces: bool = True) -> None:
    """Write ``text`` as one line; empty: the process works, so that no earlier reason is shown when it ends.

    ``replaces``: whether it replaces a message that another process of the container wrote. It never raises,
    because the file is for people only.
    """
    line = escaped(" ".join(text.split())).encode()[:MESSAGE_BYTES_MAX]
    content = line.decode(errors="ignore").encode()
    try:
        if not replaces and file.stat().st_size > 0:
            return
        descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # only if it exists
        try:
            os.write(descriptor, content)
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        pass  # not in a container
    except OSError as error:
        log.warning("termination_message.unwritable", file=str(file), reason=str(error))
