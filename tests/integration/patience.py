"""How long the SDK waits in stories in which brokers die: starting one takes half a minute at worst.

Where several runs share a machine, that is; the SDK's own limits are made for brokers that come back
within a moment.
"""

from __future__ import annotations

from onewriter import Limits, ProducerOptions

SECONDS = 240.0

PATIENT = Limits(operation_timeout_seconds=SECONDS, request_timeout_seconds=SECONDS / 2)
LASTING = ProducerOptions(send_timeout_seconds=SECONDS)
