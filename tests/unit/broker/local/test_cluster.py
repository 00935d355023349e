"""The layout of the embedded cluster, and what is refused before anything is started."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from onewriter_broker.local.cluster import (
    ClusterSettings,
    EmbeddedCluster,
    refuse_other_store,
    stored_cluster,
)
from onewriter_broker.local.embedded import EmbeddedSettings
from onewriter_core.errors import ConfigurationError


def settings(folder: Path, shards: int = 3, replicas: int = 1, port: int = 7100) -> ClusterSettings:
    return ClusterSettings(EmbeddedSettings(folder / "valkey-cluster"), shards, replicas, port)


@pytest.mark.parametrize("shards", [0, 1, 2])
def test_fewer_than_three_shards_have_no_majority(tmp_path: Path, shards: int) -> None:
    with pytest.raises(ConfigurationError, match="no majority is left"):
        settings(tmp_path, shards)


@pytest.mark.parametrize(
    ("shards", "replicas", "port", "match"),
    [(17, 1, 7100, "16 shards"), (3, 5, 7100, "4 replicas"), (3, 1, 65_530, "12 ports")],
)
def test_settings_that_one_machine_cannot_run_are_refused(
    tmp_path: Path, shards: int, replicas: int, port: int, match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        settings(tmp_path, shards, replicas, port)


@pytest.mark.parametrize("shards", [3, 5, 16])
def test_the_shards_share_all_slots(tmp_path: Path, shards: int) -> None:
    layout = settings(tmp_path, shards)
    starts = [layout.first_slot(shard) for shard in range(shards + 1)]
    assert (starts[0], starts[-1]) == (0, 16_384)
    sizes = [end - start for start, end in itertools.pairwise(starts)]
    assert max(sizes) - min(sizes) <= 1


async def test_a_stored_layout_cannot_be_changed(tmp_path: Path) -> None:
    layout = settings(tmp_path)
    layout.server.directory.mkdir()
    stored = {"shards": 4, "replicas": 1, "port": 7100, "formed": True}
    (layout.server.directory / "cluster.json").write_text(
        json.dumps({**stored, "password": "a", "supervisorPassword": "b"})
    )
    with pytest.raises(ConfigurationError, match="with shards 4, not 3"):
        await EmbeddedCluster(layout).start()


def test_a_stored_cluster_is_found(tmp_path: Path) -> None:
    assert stored_cluster(tmp_path) is None
    (tmp_path / "valkey-cluster").mkdir()
    path = tmp_path / "valkey-cluster" / "cluster.json"
    path.write_text('{"shards": 3, "replicas": 2, "port": 7200}')
    assert stored_cluster(tmp_path) is not None
    path.write_text('{"shards": 3}')
    with pytest.raises(ConfigurationError, match="cannot be read"):
        stored_cluster(tmp_path)


def test_a_single_process_and_a_cluster_do_not_share_a_directory(tmp_path: Path) -> None:
    for is_cluster in (False, True):
        refuse_other_store(tmp_path, is_cluster=is_cluster)
    (tmp_path / "valkey").mkdir()
    (tmp_path / "valkey" / "dataset-id").touch()
    refuse_other_store(tmp_path, is_cluster=False)
    with pytest.raises(ConfigurationError, match="without --shards"):
        refuse_other_store(tmp_path, is_cluster=True)
    (tmp_path / "valkey" / "dataset-id").unlink()
    (tmp_path / "valkey-cluster").mkdir()
    (tmp_path / "valkey-cluster" / "cluster.json").touch()
    with pytest.raises(ConfigurationError, match="with --shards"):
        refuse_other_store(tmp_path, is_cluster=False)
