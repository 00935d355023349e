"""Limits of the SDK for tests in which brokers die: starting a broker takes up to half a minute.

This happens if several runs share a machine. The SDK's own limits are for brokers that return within a
moment.
"""

from __future__ import annotations

from onewriter import Limits, ProducerOptions

SECONDS = 240.0

PATIENT = Limits(operation_timeout_seconds=SECONDS, request_timeout_seconds=SECONDS / 2)
LASTING = ProducerOptions(send_timeout_seconds=SECONDS)
