"""The generated protobuf module is what PulsarApi.proto says."""

from __future__ import annotations

import re
from pathlib import Path

from google.protobuf.descriptor import Descriptor

from onewriter_core.wire.proto import PulsarApi_pb2 as pb
from onewriter_core.wire.proto import generate

CHECKED_IN = generate.IMPORT_ROOT / generate.SOURCE.replace(".proto", "_pb2.py")


def test_generating_again_gives_the_same_module(tmp_path: Path) -> None:
    generate.generate(tmp_path)
    again = tmp_path / generate.SOURCE.replace(".proto", "_pb2.py")
    # The descriptor is the module's whole content; the lines around it belong to the compiler.
    assert descriptor_line(again) == descriptor_line(CHECKED_IN)
    assert "ValidateProtobufRuntimeVersion" not in again.read_text()


def descriptor_line(module: Path) -> str:
    match = re.search(r"AddSerializedFile\(.*\)", module.read_text())
    assert match is not None
    return match[0]


def test_the_types_know_every_message_and_field() -> None:
    types = CHECKED_IN.with_suffix(".pyi").read_text()

    def check(message: Descriptor) -> None:
        assert f"class {message.name}(" in types
        for field in message.fields:
            assert re.search(rf"\b(def )?{field.name}\b", types), f"{message.name}.{field.name}"
        for value in message.enum_values_by_name:
            assert f"{value}:" in types
        for nested in message.nested_types:
            check(nested)

    for message in pb.DESCRIPTOR.message_types_by_name.values():
        check(message)
