"""Lines about requests are bounded in number and hold nothing that a client sent."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from onewriter_http import logs
from onewriter_http.logs import LIBRARIES, RequestLog, Throttle, quiet_libraries


@pytest.fixture
def library_loggers() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(each.handlers, each.level, each.propagate) for each in loggers]
    yield
    for each, (handlers, level, propagate) in zip(loggers, before, strict=True):
        each.handlers, each.propagate = handlers, propagate
        each.setLevel(level)


def raised(text: str) -> Exception:
    try:
        raise ValueError(text)
    except ValueError as error:
        return error


def test_log_lines_of_a_kind_are_limited_per_period_and_the_rest_is_counted() -> None:
    time = [0.0]
    log = RequestLog("x", Throttle(3, lambda: time[0]))
    with structlog.testing.capture_logs() as lines:
        for _ in range(10):
            log.write(logging.INFO, "one", status="400")
        log.write(logging.INFO, "another")
        time[0] = logs.PERIOD_SECONDS
        log.write(logging.INFO, "one", status="400")
    assert [line["event"] for line in lines] == ["one"] * 3 + ["another", "one"]
    assert lines[-1]["similar_lines_dropped"] == 7


def test_kinds_without_end_take_bounded_memory() -> None:
    throttle = Throttle(1)
    for number in range(10 * logs.KINDS_MAX):
        throttle.passes(str(number))
    assert len(throttle._counts) <= logs.KINDS_MAX + 1
    assert len(throttle._dropped) <= logs.KINDS_MAX


def test_a_defect_names_code_and_no_text() -> None:
    with structlog.testing.capture_logs() as lines:
        RequestLog("x").defect("failed", raised("Bearer secret"))
    assert lines[0]["error"] == "ValueError"
    assert any("raised" in frame for frame in lines[0]["where"])
    assert "secret" not in repr(lines)


@pytest.mark.usefixtures("library_loggers")
@pytest.mark.parametrize("name", ["aiohttp.server", "aiohttp.access", "asyncio"])
def test_log_records_of_libraries_omit_their_text(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    quiet_libraries()
    error = raised("Bearer secret")
    with structlog.testing.capture_logs() as lines:
        logging.getLogger(name).error("Bearer %s", "secret", exc_info=error)
        logging.getLogger(name).info("Bearer secret")
    assert [(line["event"], line["error"]) for line in lines] == [("library", "ValueError")]
    assert "secret" not in repr(lines) + "".join(capfd.readouterr())
