"""The order in which a leader starts its parts."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from kubernetes.aio import client
from tests.unit.kube.installation_configurations import configured

from onewriter_operator.app import Operator
from onewriter_operator.events import Recorder
from onewriter_operator.kube import Kube
from onewriter_operator.reconcile.broker_pods import BrokerPods
from onewriter_operator.reconcile.installation import InstallationReconciler
from onewriter_operator.reconcile.one_writer import OneWriterReconciler
from onewriter_operator.reconcile.store_formation import StoreClusterReconciler
from onewriter_operator.settings import OperatorSettings
from onewriter_operator.sweeper import Sweeper


async def test_the_store_is_repaired_also_while_topics_cannot_be_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repairs = asyncio.Event()

    async def rest(self: object) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()

    async def repair(self: object) -> None:
        repairs.set()

    async def never_listed(self: object, unlisted: object) -> None:
        """Wait for a CRD that is missing."""
        await asyncio.Event().wait()

    for part in (BrokerPods, InstallationReconciler, OneWriterReconciler, Recorder):
        monkeypatch.setattr(part, "run", rest)
    monkeypatch.setattr(StoreClusterReconciler, "run", repair)
    monkeypatch.setattr(Sweeper, "fill", never_listed)
    operator = Operator(
        OperatorSettings(), configured({"store": {"shards": 3}}, namespace="onewriter")
    )
    lead = operator._lead(cast("Kube", None), client.Configuration())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        leading = group.create_task(lead)
        await repairs.wait()
        leading.cancel()
