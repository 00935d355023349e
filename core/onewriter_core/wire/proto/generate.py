"""Makes PulsarApi_pb2.py and its types from PulsarApi.proto: `python -m onewriter_core.wire.proto.generate`.

Needs grpcio-tools and mypy-protobuf (extra `dev`); nothing at run time imports this module. The
result is checked in, and a test makes it again and compares.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SOURCE = "onewriter_core/wire/proto/PulsarApi.proto"
"""Relative to the import root: the name under which protobuf registers the file."""
IMPORT_ROOT = Path(__file__).resolve().parents[3]

_VERSION_PIN = re.compile(
    r"^# Protobuf Python Version: .*\n"
    r"|^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\((?:\n .*)*\n\)\n",
    re.MULTILINE,
)
"""The module refuses every protobuf older than the compiler that happened to make it, and warns one
major version later. We use nothing beyond the descriptors, which all versions since 4 read alike,
so the pin goes: pyproject.toml says which versions are supported."""

_MYPY_SETTING = '# mypy: disable-error-code="mutable-override"\n'
"""Every generated message narrows its base's DESCRIPTOR."""


def generate(target: Path) -> None:
    """Write the generated modules below ``target``; raises CalledProcessError when protoc fails."""
    # protoc looks for the mypy plugin on PATH; it is installed beside the interpreter.
    tools = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"}
    subprocess.run(  # noqa: S603 - fixed arguments, no shell
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={IMPORT_ROOT}",
            f"--python_out={target}",
            f"--mypy_out=quiet:{target}",
            SOURCE,
        ],
        check=True,
        env=environment,
    )
    module = target / SOURCE.replace(".proto", "_pb2.py")
    module.write_text(_VERSION_PIN.sub("", module.read_text()))
    types = module.with_suffix(".pyi")
    types.write_text(_MYPY_SETTING + types.read_text())


if __name__ == "__main__":  # pragma: no cover - run by hand
    generate(IMPORT_ROOT)
