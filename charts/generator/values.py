"""The chart's values. Parts that are also in the operator's configuration use the same models."""

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
    StoreLayout,
    TenancyOptions,
    Valkey,
    check_promise,
)


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


class ImageValues(ApiModel):
    """The image of all components."""

    repository: Annotated[str, Field(min_length=1)] = "onewriter/onewriter"
    """The image's name, with a registry if needed."""
    tag: Annotated[str, BeforeValidator(_text)] = ""
    """The image's tag; empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """The image's digest; overrides the tag."""
    pull_policy: WordOf[PullPolicy] = PullPolicy.IF_NOT_PRESENT
    """When a node pulls the image."""
    pull_secrets: ListOf[str] = ()
    """Names of the Secrets for pulling the image."""


class Crds(ApiModel):
    """The definitions of ExclusiveTopic, ProducerClaim and BucketAnchor."""

    enabled: bool = True
    """Whether the chart installs and upgrades them."""
    keep: bool = True
    """Whether they stay when the chart is uninstalled. Deleting them deletes all topics and claims. The definition of
    BucketAnchor always stays, because the store's data cannot be used without the anchors."""


class LogLevel(StrEnum):
    """Log level."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class OperatorValues(PodOptions):
    """The operator. One of its replicas leads, all serve the webhook."""

    replicas: Annotated[int, Field(ge=1, le=5)] = 2
    """Number of replicas."""
    resources: Resources = Resources(
        requests={"cpu": "100m", "memory": "192Mi"}, limits={"memory": "512Mi"}
    )
    """Resources of each replica."""
    pod_disruption_budget: Budget = Budget()
    """PodDisruptionBudget: how many pods a drain may evict at the same time."""
    namespaces: ListOf[Annotated[str, Field(pattern=DNS_LABEL)]] = ()
    """Namespaces that the operator manages, with rights only in these; empty: all."""
    resync_seconds: Annotated[float, Field(ge=10, strict=False)] = 300.0
    """Interval of a full reconcile, which finds objects that others changed."""
    concurrency: Annotated[int, Field(ge=1, le=256)] = 16
    """Number of objects that are reconciled at the same time."""
    lease: Lease = Lease()
    """Leader election between the replicas."""
    leader_services: OptIn = OptIn()
    """The right to manage Services and EndpointSlices of writers (spec.leaderService)."""
    pod_deletion: OptIn = OptIn()
    """The right to delete pods of fenced writers without checking disruption budgets (spec.fencing.podPolicy Delete)."""


class Rbac(ApiModel):
    """Rights in the Kubernetes API."""

    create: bool = True
    """Whether the chart creates accounts, roles and bindings."""
    aggregate: bool = True
    """Whether the roles view, edit and admin include onewriter's kinds."""


class AdmissionPolicies(ApiModel):
    """ValidatingAdmissionPolicies: objects that the API server refuses."""

    enabled: bool = True
    """Whether to install them. They refuse topics of other tenants, and changes by the operator to objects that are not its own."""


class Webhook(ApiModel):
    """The webhook that adds the sidecar to pods labelled onewriter.dev/inject."""

    enabled: bool = True
    """Whether to install it."""
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    """Fail: no labelled pod starts without its sidecar. Other pods never call the webhook."""
    timeout_seconds: Annotated[int, Field(ge=1, le=5)] = 5
    """Timeout of a call; after it the policy above applies."""
    secret_name: str = ""
    """The Secret with the webhook's certificate; empty: RELEASE-webhook-tls."""
    ca_bundle: str = ""
    """The authority (CA) of a certificate that you provide, as PEM."""


class CertificateSource(StrEnum):
    """Source of a certificate."""

    SELF_SIGNED = "SelfSigned"
    CERT_MANAGER = "CertManager"
    SECRET = "Secret"  # noqa: S105 - a word


class IssuerReference(ApiModel):
    """An issuer of cert-manager."""

    name: str = ""
    """The issuer's name; empty: the chart creates one."""
    kind: str = "Issuer"
    """Issuer or ClusterIssuer."""
    group: str = "cert-manager.io"
    """The issuer's API group."""


class Certificates(ApiModel):
    """Sources of the certificates."""

    webhook: WordOf[CertificateSource] = CertificateSource.SELF_SIGNED
    """Source of the webhook's certificate. SelfSigned: Helm creates it and keeps it. Secret: you create the Secret."""
    brokers: WordOf[CertificateSource] = CertificateSource.SELF_SIGNED
    """Source of the brokers' certificate. A Secret that you create has tls.crt, tls.key and ca.crt."""
    days: Annotated[int, Field(ge=30, le=36500)] = 3650
    """Days that a self-signed certificate is valid; an upgrade in the last third renews it."""
    issuer_ref: IssuerReference = IssuerReference()
    """The cert-manager issuer, for the source CertManager."""


class PodMonitor(ApiModel):
    """PodMonitors of the Prometheus operator, for brokers and operator."""

    enabled: bool = False
    """Whether to install them."""
    interval: str = "30s"
    """Interval of scrapes."""
    labels: Labels = {}
    """Labels by which your Prometheus selects them."""


class PrometheusRule(ApiModel):
    """Alerts, each with instructions."""

    enabled: bool = False
    """Whether to install them."""
    labels: Labels = {}
    """Labels by which your Prometheus selects them."""
    disabled: ListOf[str] = ()
    """Names of alerts to leave out."""


class Dashboard(ApiModel):
    """A Grafana dashboard in a ConfigMap, for Grafana's sidecar."""

    enabled: bool = False
    """Whether to install it."""
    labels: Labels = {"grafana_dashboard": "1"}
    """Labels by which Grafana's sidecar selects it."""


class Monitoring(ApiModel):
    """Objects for the cluster's monitoring."""

    pod_monitor: PodMonitor = PodMonitor()
    """PodMonitors of the Prometheus operator."""
    prometheus_rule: PrometheusRule = PrometheusRule()
    """A PrometheusRule with alerts."""
    dashboard: Dashboard = Dashboard()
    """A Grafana dashboard."""


class Checks(ApiModel):
    """Checks at installation, test and uninstallation."""

    readiness: bool = True
    """Whether an installation completes only when operator, webhook, store and brokers are ready."""
    readiness_seconds: Annotated[int, Field(ge=10, le=3600)] = 300
    """Timeout of the readiness check."""
    test: bool = True
    """Whether to install a test for `helm test`: a claim, a publish, a fence and a refused write."""
    clean_up: bool = True
    """Whether uninstalling first removes what would block objects without an operator, such as finalizers."""
    clean_up_seconds: Annotated[int, Field(ge=10, le=3600)] = 120
    """Timeout of the clean-up."""


class Values(ApiModel):
    """All values."""

    fullname_override: Annotated[str, Field(max_length=40)] = ""
    """Prefix of all names; empty: the release's name."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain."""
    image: ImageValues = ImageValues()
    """The image of all components."""
    brokers: Brokers = Brokers()
    """The brokers, which clients connect to."""
    store: StoreLayout = StoreLayout()
    """Processes of the installed store. In a cluster, memory, volume and resources of valkey are those of each process."""
    valkey: Valkey = Valkey()
    """The store that the chart installs."""
    external_store: ExternalStore = ExternalStore()
    """A Redis or Valkey that you run, instead of the installed store."""
    quotas: Quotas = Quotas()
    """Limits for one subject, and for one namespace, at each broker; 0: no limit."""
    operator: OperatorValues = OperatorValues()
    """The operator, which installs the other components and manages topics."""
    sidecar: Sidecar = Sidecar()
    """The sidecar that the webhook adds to labelled pods."""
    webhook: Webhook = Webhook()
    """The webhook that adds the sidecar."""
    certificates: Certificates = Certificates()
    """Sources of the certificates."""
    crds: Crds = Crds()
    """The CustomResourceDefinitions of onewriter."""
    rbac: Rbac = Rbac()
    """Rights in the Kubernetes API."""
    admission_policies: AdmissionPolicies = AdmissionPolicies()
    """ValidatingAdmissionPolicies: objects that the API server refuses."""
    tenancy: TenancyOptions = TenancyOptions()
    """Which topics a namespace may declare."""
    network_policies: NetworkPolicies = NetworkPolicies()
    """Network policies."""
    monitoring: Monitoring = Monitoring()
    """Objects for the cluster's monitoring."""
    spark: SparkValues = SparkValues()
    """Jobs of the pipeline, which copies topics to tables."""
    checks: Checks = Checks()
    """Checks at installation, test and uninstallation."""

    @model_validator(mode="after")
    def _promises_what_it_keeps(self) -> Self:
        check_promise(self.brokers, self.store, self.valkey, self.external_store)
        return self
