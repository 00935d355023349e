"""The imports of processes that are forked for tests."""

from __future__ import annotations

import gc

import tests.integration.recorded_writer  # noqa: F401

import onewriter.sidecar.cli  # noqa: F401
import onewriter_broker.process  # noqa: F401

gc.collect()
gc.freeze()  # a collection in a forked process then does not touch, and so copy, these objects
