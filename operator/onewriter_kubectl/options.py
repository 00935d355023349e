"""The options of ``kubectl onewriter``'s verbs, named as kubectl names its own."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
import yaml

from onewriter_kubectl.brokers import Brokers
from onewriter_kubectl.installation import Installation, find
from onewriter_kubectl.kubectl import Kubectl

Verb = TypeVar("Verb", bound=Callable[..., Any])

TABLE: Final = "table"
WIDE: Final = "wide"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller's identity, and how to reach the cluster and its brokers."""

    kubectl: Kubectl
    named_installation: str = ""
    http_url: str = ""
    token: str = ""
    account: str = ""
    ca_file: Path | None = None

    def installation(self) -> Installation:
        """The onewriter installation. Raises as ``installation.find`` does."""
        return find(self.kubectl, self.named_installation)

    @contextlib.contextmanager
    def brokers(self) -> Iterator[Brokers]:
        """The brokers, until the end of the context."""
        brokers = Brokers(
            self.kubectl,
            functools.cache(self.installation),
            url=self.http_url,
            token=self.token,
            account=self.account,
            ca_file=self.ca_file,
        )
        try:
            yield brokers
        finally:
            brokers.close()


def caller_options(verb: Verb) -> Verb:
    """The options of every verb; together they are its argument ``caller``."""

    @functools.wraps(verb)
    def with_caller(
        *arguments: Any,
        kubeconfig: str,
        kube_context: str,
        impersonated: str,
        namespace: str,
        installation: str,
        http_url: str,
        token: str,
        service_account: str,
        ca_file: Path | None,
        **others: Any,
    ) -> Any:
        kubectl = Kubectl(kubeconfig, kube_context, impersonated, namespace)
        caller = Caller(kubectl, installation, http_url, token, service_account, ca_file)
        return verb(*arguments, caller=caller, **others)

    wrapped: Any = with_caller
    for option in (
        click.option(
            "--service-account",
            default="",
            metavar="[NAMESPACE/]NAME",
            help="ServiceAccount for requests to brokers; default: the operator's.",
        ),
        click.option(
            "--token",
            envvar="ONEWRITER_TOKEN",
            default="",
            help="A token for brokers; default: created by TokenRequest.",
        ),
        click.option(
            "--http-url",
            envvar="ONEWRITER_HTTP_URL",
            default="",
            help="A broker that can be reached directly; default: by port-forward.",
        ),
        click.option(
            "--ca-file",
            envvar="ONEWRITER_TLS_CA_FILE",
            type=click.Path(path_type=Path),
            help="CA certificates for an https:// --http-url; default: the system's.",
        ),
        click.option(
            "--installation",
            envvar="ONEWRITER_INSTALLATION",
            default="",
            metavar="NAMESPACE[/RELEASE]",
            help="Where onewriter is installed; default: search all namespaces.",
        ),
        click.option("--as", "impersonated", default="", help="User to impersonate."),
        click.option("--context", "kube_context", default="", help="Context of the kubeconfig."),
        click.option("--kubeconfig", default="", help="The kubeconfig file."),
        click.option("-n", "--namespace", default="", help="Namespace of the topic."),
    ):
        wrapped = option(wrapped)
    found: Verb = wrapped
    return found


everywhere_option = click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="Topics of all namespaces."
)


def printed(answer: object, output: str) -> None:
    """An answer for scripts, as JSON or YAML."""
    if output == "json":
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo(yaml.safe_dump(answer, sort_keys=False), nl=False)
