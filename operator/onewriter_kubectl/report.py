"""``report``: an archive about an installation and its topics, for support.

Each part is collected on its own. ``errors.txt`` lists the missing parts with reasons, so that a caller
with few rights still gets the rest. The report never reads Secrets.
"""

from __future__ import annotations

import base64
import io
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import yaml

from onewriter_core.errors import OnewriterError, Unavailable
from onewriter_core.kubernetes.kinds import ANCHOR, CLAIM, ONE_WRITER, TOPIC
from onewriter_core.kubernetes.objects import PodObject
from onewriter_kubectl import redaction
from onewriter_kubectl.installation import RELEASE_LABEL, Installation, pods
from onewriter_kubectl.kubectl import Kubectl, label_selector
from onewriter_kubectl.tunnel import Tunnel

LOG_LINES_MAX: Final = 100_000
"""Lines from the end of one container's log."""

PAGE_BYTES_MAX: Final = 32_000_000
PAGE_SECONDS: Final = 15.0

LABELLED_KINDS: Final = (
    *("deployments.apps", "statefulsets.apps", "pods", "services", "configmaps"),
    *("poddisruptionbudgets.policy", "networkpolicies.networking.k8s.io", "persistentvolumeclaims"),
)
"""Kinds of the installation's objects."""

UNLABELLED_KINDS: Final = (
    *("endpointslices.discovery.k8s.io", "events", "leases.coordination.k8s.io"),
    *(ANCHOR.resource, ONE_WRITER.resource),
)
"""Kinds in its namespace that lack its labels."""

PAGES: Final = ("/healthz", "/readyz", "/metrics")
"""HTTP pages of brokers and operators; the metrics of brokers need the token of the installation's Secret."""


class Report:
    """An archive that is being written. ``warn`` receives each missing part."""

    def __init__(self, path: Path, title: str, warn: Callable[[str], None]) -> None:
        self._archive = tarfile.open(path, "w:gz")  # noqa: SIM115 - closed by ``close``
        self._title = title
        self._warn = warn
        self._errors: list[str] = []

    def close(self) -> int:
        """Write the list of missing parts and close the archive; their number."""
        if self._errors:
            self.add("errors.txt", "\n".join(self._errors) + "\n")
        self._archive.close()
        return len(self._errors)

    def add(self, name: str, text: str) -> None:
        """Add a file."""
        data = text.encode("utf-8", "replace")
        about = tarfile.TarInfo(f"{self._title}/{name}")
        about.size = len(data)
        about.mode = 0o600
        self._archive.addfile(about, io.BytesIO(data))

    def gather(self, name: str, part: Callable[[], str]) -> None:
        """Add a file whose text may be unavailable."""
        try:
            text = part()
        except OnewriterError as error:
            self.note_missing(name, error)
            return
        self.add(name, text)

    def note_missing(self, name: str, error: OnewriterError) -> None:
        """Note a missing part."""
        line = f"{name}: {error}"
        self._errors.append(line)
        self._warn(line)

    # ------------------------------------------------------------ parts

    def versions(self, kubectl: Kubectl, own: str) -> None:
        """Add the versions of this program, kubectl and the API server."""
        self.add("version.txt", f"{own}\n")
        self.gather("kubernetes-version.yaml", lambda: kubectl.text("version", "--output=yaml"))

    def topics(self, kubectl: Kubectl, *, everywhere: bool) -> None:
        """Add all topics and claims, and the Events about them."""
        where = "*" if everywhere else None
        for kind in (TOPIC, CLAIM):
            self._objects(kubectl, f"topics/{kind.resource}.yaml", where, kind.resource)
            selector = f"--field-selector=involvedObject.kind={kind.kind}"
            self._objects(kubectl, f"topics/events-{kind.kind}.yaml", where, "events", selector)

    def installation(self, kubectl: Kubectl, installation: Installation, since: str) -> None:
        """Add the installation's objects, and the logs and pages of its pods."""
        here = installation.namespace
        selector = label_selector(installation.labels())
        for kind in LABELLED_KINDS:
            self._objects(kubectl, f"installation/{kind}.yaml", here, kind, selector)
        for kind in UNLABELLED_KINDS:
            self._objects(kubectl, f"installation/{kind}.yaml", here, kind)
        found: list[PodObject] = []
        self.gather("installation/pods.txt", lambda: _listed(kubectl, installation, found))
        for pod in found:
            self._logs(kubectl, pod, since)
            self._pages(kubectl, pod)

    def _objects(self, kubectl: Kubectl, name: str, where: str | None, *arguments: str) -> None:
        def part() -> str:
            items = kubectl.items(*arguments, namespace=where)
            return yaml.safe_dump_all(map(redaction.in_document, items), sort_keys=False)

        self.gather(name, part)

    def _logs(self, kubectl: Kubectl, pod: PodObject, since: str) -> None:
        for container in pod.containers:
            title = f"pods/{pod.key.name}/{container.name}"
            log = partial(_log, kubectl, pod, container.name)
            self.gather(f"{title}.log", partial(log, f"--since={since}"))
            if container.has_restarted:
                self.gather(f"{title}.previous.log", partial(log, "--previous"))

    def _pages(self, kubectl: Kubectl, pod: PodObject) -> None:
        """Add the HTTP pages of a pod that serves some."""
        number = pod.port("probes") or pod.port("http")
        if not number:
            return
        title = f"pods/{pod.key.name}"
        tunnel = Tunnel(kubectl, pod.key.namespace, pod.key.name, number)
        try:
            url = tunnel.open()
        except OnewriterError as error:
            self.note_missing(f"{title}/http", error)
            return
        try:
            token = _metrics_token(kubectl, pod)
            for page in PAGES:
                self.gather(f"{title}{page}.txt", partial(_page, url + page, token))
        finally:
            tunnel.close()


def _listed(kubectl: Kubectl, installation: Installation, found: list[PodObject]) -> str:
    """The installation's pods; also adds them to ``found``."""
    found += pods(kubectl, installation)
    return "".join(f"{pod.key.name}\n" for pod in found)


def _log(kubectl: Kubectl, pod: PodObject, container: str, which: str) -> str:
    text = kubectl.text(
        *("logs", pod.key.name, f"--container={container}", "--timestamps", which),
        f"--tail={LOG_LINES_MAX}",
        namespace=pod.key.namespace,
    )
    return redaction.in_text(text)


def _metrics_token(kubectl: Kubectl, pod: PodObject) -> str:
    """The token for the brokers' metrics; empty if the caller may not read its Secret."""
    release = pod.labels.get(RELEASE_LABEL, "")
    secret = ("get", "secret", f"{release}-metrics", "--output=jsonpath={.data.token}")
    try:
        text = kubectl.text(*secret, namespace=pod.key.namespace)
        return base64.b64decode(text, validate=True).decode("ascii")
    except (OnewriterError, ValueError):
        return ""


def _page(url: str, token: str) -> str:
    """The text of a page, with any HTTP status. Raises Unavailable."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url)  # noqa: S310 - http, to a tunnel of our own
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with opener.open(request, timeout=PAGE_SECONDS) as answer:
            text = answer.read(PAGE_BYTES_MAX).decode("utf-8", "replace")
            return redaction.in_text(text)
    except urllib.error.HTTPError as error:
        with error:  # /readyz states its problems with an error status
            return f"{error.code}\n{error.read(PAGE_BYTES_MAX).decode('utf-8', 'replace')}"
    except (OSError, ValueError) as error:
        raise Unavailable(f"{url}: {error}") from error
