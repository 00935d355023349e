"""Names that onewriter gives to parts of Kubernetes objects: API group, annotations, labels, finalizers.

The operator and the kubectl plugin read and write them; docs/operator.md documents those for users.
"""

from __future__ import annotations

from typing import Final

GROUP: Final = "onewriter.dev"
"""The API group, and the prefix of the other names."""

# ------------------------------------------------------------ ExclusiveTopic and ProducerClaim

PAUSED: Final = "onewriter.dev/paused"
UNMANAGED: Final = "onewriter.dev/unmanaged"
RECONCILE_AT: Final = "onewriter.dev/reconcile-at"
FENCE: Final = "onewriter.dev/fence"
HANDOVER: Final = "onewriter.dev/handover"
TOPIC_FINALIZER: Final = "onewriter.dev/topic-cleanup"

# ------------------------------------------------------------ pods, leader Services and slices

CLAIM_LABEL: Final = "onewriter.dev/claim"
"""The operator watches pods with this label, whatever its value; a podSelector may select them."""

EPOCH_LABEL: Final = "onewriter.dev/epoch"

INJECT_LABEL: Final = "onewriter.dev/inject"
TOPIC_ANNOTATION: Final = "onewriter.dev/topic"
PRIORITY_ANNOTATION: Final = "onewriter.dev/priority"
READY_WHEN_ANNOTATION: Final = "onewriter.dev/ready-when"
RELAY_ANNOTATION: Final = "onewriter.dev/relay"
CA_ANNOTATION: Final = "onewriter.dev/broker-ca"
"""Of pods under injection: the request, and the sidecar's settings."""
