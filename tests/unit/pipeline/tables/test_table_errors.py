"""Errors of libraries become one short line that gives the reason."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from onewriter_pipeline.engine import message_of
from onewriter_pipeline.tables.files import ERROR_CHARACTERS_MAX, line

LACKING = "The operation lacked the necessary privileges for path t"
CHAIN = f"""Kernel error -> {LACKING}
          \x1b[31m\u21b3\x1b[0m Error performing GET http://127.0.0.1:1/t?x in 484us - Server returned
           \x1b[31m\u21b3\x1b[0m 403 Forbidden
            \x1b[31m\u21b3\x1b[0m <?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.</Message><AWSAccessKeyId>probe</AWSAccessKeyId></Error>
"""
REFUSED = """Generic S3 error
    \x1b[31m\u21b3\x1b[0m tcp connect
     error
     \x1b[31m\u21b3\x1b[0m Connection refused (os error 111)"""
TRACEBACK = """[PYTHON_DATA_SOURCE_ERROR] Failed to commit: Traceback (most recent call last):
  File "x.py", line 1, in y
{}

JVM stacktrace: org.apache.spark
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (CHAIN, f"{LACKING}: 403 Forbidden: SignatureDoesNotMatch: Check your key."),
        (REFUSED, "Generic S3 error: tcp connect error: Connection refused (os error 111)"),
        ("[Errno 28] No space left\nand more", "[Errno 28] No space left"),
        ("", "OSError"),
        ("x" * 1000, "x" * ERROR_CHARACTERS_MAX),
    ],
)
def test_errors_of_disks_and_object_stores_become_one_line(message: str, expected: str) -> None:
    assert line(OSError(message)) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (TRACEBACK.format("onewriter_pipeline.errors.NotFound: there is no t"), "there is no t"),
        (TRACEBACK.format("TypeError: not an instance"), "TypeError: not an instance"),
        ("[TABLE_OR_VIEW_NOT_FOUND] x\n== SQL ==", "[TABLE_OR_VIEW_NOT_FOUND] x"),
    ],
)
def test_errors_of_spark_become_one_line(message: str, expected: str) -> None:
    assert message_of(Py4JError(message)) == expected
