"""Features that manifest files may not request, because a broker with files knows no pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from onewriter_broker.desired import read_manifests
from onewriter_core.errors import ConfigurationError

TOPIC = """
apiVersion: onewriter.dev/v1alpha1
kind: ExclusiveTopic
metadata: {name: orders}
"""

CLAIM = """---
apiVersion: onewriter.dev/v1alpha1
kind: ProducerClaim
metadata: {name: NAME}
spec:
  topicRef: {name: orders}
  subject: {serviceAccountName: writerSELECTOR}
"""


def manifest(directory: Path, *claims: tuple[str, str]) -> Path:
    file = directory / "topics.yaml"
    texts = [CLAIM.replace("NAME", name).replace("SELECTOR", more) for name, more in claims]
    file.write_text(TOPIC + "".join(texts))
    return file


def test_topics_and_claims_are_read(tmp_path: Path) -> None:
    state = read_manifests((manifest(tmp_path, ("primary", "")),))
    assert [str(topic.topic_name) for topic in state.topics] == [
        "persistent://public/default/orders"
    ]
    assert [claim.metadata.name for claim in state.claims] == ["primary"]


def test_a_pod_selector_is_refused_outside_kubernetes(tmp_path: Path) -> None:
    selector = ", podSelector: {matchLabels: {app: writer}}"
    with pytest.raises(ConfigurationError) as refused:
        read_manifests((manifest(tmp_path, ("primary", ""), ("labelled", selector)),))
    (line,) = str(refused.value).splitlines()
    assert "ProducerClaim" in line
    assert "labelled" in line
    assert "spec.subject.podSelector" in line
