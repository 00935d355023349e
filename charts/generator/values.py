"""The chart's values. What they share with the operator's configuration are its very models."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from charts.generator.spark import SparkValues
from pydantic import BeforeValidator, Field, model_validator

from onewriter_core.api.common import DNS_LABEL, ApiModel, ListOf, WordOf
from onewriter_operator.configuration import (
    Brokers,
    Budget,
    ExternalStore,
    Labels,
    Lease,
    NetworkPolicies,
    OptIn,
    PodOptions,
    PullPolicy,
    Quotas,
    Resources,
    Sidecar,
    TenancyOptions,
    Valkey,
    check_promise,
)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


class ImageValues(ApiModel):
    """The one image that all parts run."""

    repository: Annotated[str, Field(min_length=1)] = "onewriter/onewriter"
    """Its name, with a registry where need be."""
    tag: Annotated[str, BeforeValidator(_text)] = ""
    """Its tag; empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Its digest, which counts more than a tag."""
    pull_policy: WordOf[PullPolicy] = PullPolicy.IF_NOT_PRESENT
    """When a node fetches it."""
    pull_secrets: ListOf[str] = ()
    """Names of Secrets with which it may."""


class Crds(ApiModel):
    """The definitions of ExclusiveTopic, ProducerClaim and BucketAnchor."""

    enabled: bool = True
    """Whether the chart installs and upgrades them."""
    keep: bool = True
    """Whether they stay when the chart is uninstalled. With them go all topics and anchors."""


class LogLevel(StrEnum):
    """What is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class OperatorValues(PodOptions):
    """The operator. One of its replicas works, all answer the webhook."""

    replicas: Annotated[int, Field(ge=1, le=5)] = 2
    """How many."""
    resources: Resources = Resources(
        requests={"cpu": "100m", "memory": "192Mi"}, limits={"memory": "512Mi"}
    )
    """Of each."""
    pod_disruption_budget: Budget = Budget()
    """How many a drain may take away at once."""
    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces that it looks after, with rights in these alone; empty: all."""
    resync_seconds: Annotated[float, Field(ge=10, strict=False)] = 300.0
    """Everything is looked at anew so often, for what was changed outside."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Objects that are worked on at the same time."""
    lease: Lease = Lease()
    """The election between its replicas."""
    leader_services: OptIn = OptIn()
    """Services and EndpointSlices that lead to writers (spec.leaderService)."""
    pod_deletion: OptIn = OptIn()
    """Deleting pods of fenced writers behind disruption budgets (spec.fencing.podPolicy Delete)."""


class Rbac(ApiModel):
    """Rights in the API."""

    create: bool = True
    """Whether the chart creates accounts, roles and bindings."""
    aggregate: bool = True
    """Whether the roles view, edit and admin get our kinds."""


class AdmissionPolicies(ApiModel):
    """ValidatingAdmissionPolicies: what the API server refuses by itself."""

    enabled: bool = True
    """Whether there are any: topics of foreign tenants, and objects that the operator may not touch."""


class Webhook(ApiModel):
    """What adds the sidecar to pods labelled onewriter.dev/inject."""

    enabled: bool = True
    """Whether there is one."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """Fail: no labelled pod starts without its sidecar. Other pods are never asked about."""
    timeout_seconds: Annotated[int, Field(ge=1, le=5)] = 5
    """After so long without an answer the policy above counts."""
    secret_name: str = ""
    """The Secret with its certificate; empty: RELEASE-webhook-tls."""
    ca_bundle: str = ""
    """The authority of a certificate that was given, as PEM."""


class CertificateSource(StrEnum):
    """Where a certificate comes from."""

    SELF_SIGNED = "SelfSigned"
    CERT_MANAGER = "CertManager"
    SECRET = "Secret"  # noqa: S105 - a word


class IssuerReference(ApiModel):
    """An issuer of cert-manager."""

    name: str = ""
    """Its name; empty: the chart makes one for itself."""
    kind: str = "Issuer"
    """Issuer or ClusterIssuer."""
    group: str = "cert-manager.io"
    """Its API group."""


class Certificates(ApiModel):
    """Where certificates come from."""

    webhook: WordOf[CertificateSource] = CertificateSource.SELF_SIGNED
    """Of the webhook. SelfSigned: made by Helm and kept. Secret: you put it there."""
    brokers: WordOf[CertificateSource] = CertificateSource.SELF_SIGNED
    """Of the brokers. A Secret that you put there has tls.crt, tls.key and ca.crt."""
    days: Annotated[int, Field(ge=30, le=36500)] = 3650
    """How long a self-signed one is valid; an upgrade in its last third renews it."""
    issuer_ref: IssuerReference = IssuerReference()
    """Who signs for CertManager."""


class PodMonitor(ApiModel):
    """PodMonitors of the Prometheus operator, for brokers and operator."""

    enabled: bool = False
    """Whether there are any."""
    interval: str = "30s"
    """Between two scrapes."""
    labels: Labels = {}
    """Labels that your Prometheus selects by."""


class PrometheusRule(ApiModel):
    """Alerts, with what to do about each."""

    enabled: bool = False
    """Whether there are any."""
    labels: Labels = {}
    """Labels that your Prometheus selects by."""
    disabled: ListOf[str] = ()
    """Names of alerts to leave out."""


class Dashboard(ApiModel):
    """A Grafana dashboard in a ConfigMap, for Grafana's sidecar."""

    enabled: bool = False
    """Whether there is one."""
    labels: Labels = {"grafana_dashboard": "1"}
    """Labels that Grafana's sidecar selects by."""


class Monitoring(ApiModel):
    """What the monitoring of the cluster is told."""

    pod_monitor: PodMonitor = PodMonitor()
    """PodMonitors of the Prometheus operator."""
    prometheus_rule: PrometheusRule = PrometheusRule()
    """Alerts."""
    dashboard: Dashboard = Dashboard()
    """A Grafana dashboard."""


class Checks(ApiModel):
    """What is looked at when the chart is installed, tested or uninstalled."""

    readiness: bool = True
    """Whether an installation is only done when operator, webhook, store and brokers are ready."""
    readiness_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    """How long they may take."""
    test: bool = True
    """Whether `helm test` has something to run: a claim, a publish, a fence and the refusal."""
    clean_up: bool = True
    """Whether uninstalling first takes off what would leave objects stuck without an operator."""
    clean_up_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    """How long that may take."""


class Values(ApiModel):
    """All of them."""

    fullname_override: Annotated[str, Field(max_length=40)] = ""
    """What all names begin with; empty: the release's name."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain."""
    image: ImageValues = ImageValues()
    """The one image that all parts run."""
    brokers: Brokers = Brokers()
    """What clients connect to."""
    valkey: Valkey = Valkey()
    """The store that is installed beside them."""
    external_store: ExternalStore = ExternalStore()
    """A Redis or Valkey that somebody else runs, instead."""
    quotas: Quotas = Quotas()
    """What one subject, and one namespace, may take of each broker; 0: any number."""
    operator: OperatorValues = OperatorValues()
    """What deploys the others, and looks after topics."""
    sidecar: Sidecar = Sidecar()
    """What is added to pods that ask for it."""
    webhook: Webhook = Webhook()
    """What adds it."""
    certificates: Certificates = Certificates()
    """Where certificates come from."""
    crds: Crds = Crds()
    """The definitions of our kinds."""
    rbac: Rbac = Rbac()
    """Rights in the API."""
    admission_policies: AdmissionPolicies = AdmissionPolicies()
    """What the API server refuses by itself."""
    tenancy: TenancyOptions = TenancyOptions()
    """Whose topics a namespace may declare."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """Who may talk to whom."""
    monitoring: Monitoring = Monitoring()
    """What the monitoring of the cluster is told."""
    spark: SparkValues = SparkValues()
    """Jobs of the pipeline: the history of topics in tables."""
    checks: Checks = Checks()
    """What is looked at when the chart is installed, tested or uninstalled."""

    @model_validator(mode="after")
    def _promises_what_it_keeps(self) -> Self:
        check_promise(self.brokers, self.valkey, self.external_store)
        return self
