"""Values of the pipeline: its jobs on Spark, and who runs them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from onewriter_core.api.common import ApiModel, ListOf, WordOf
from onewriter_operator.configuration import Labels, Plain, Quantity, Resources

_SCHEDULE = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+( +\S+){4})$"
_MEMORY = r"^[0-9]+[mgt]$"
_NAME = r"^[A-Za-z_][A-Za-z0-9_]*$"

Schedule = Annotated[str, Field(pattern=_SCHEDULE)]
JavaMemory = Annotated[str, Field(pattern=_MEMORY)]
Port = Annotated[int, Field(ge=1, le=65535)]


def _texts(value: Any) -> Any:
    """Settings of Spark are texts: true and 2 as YAML has them become that."""
    if not isinstance(value, dict):
        return value
    return {
        key: str(each).lower() if isinstance(each, bool) else _text(each)
        for key, each in value.items()
    }


def _text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


_SETTING = {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "boolean"}]}

Conf = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    WithJsonSchema({"type": "object", "additionalProperties": _SETTING}),
]
Variables = Annotated[
    dict[str, str],
    BeforeValidator(_texts),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": _NAME},
            "additionalProperties": _SETTING,
        }
    ),
]


class Runner(StrEnum):
    """Who runs the jobs."""

    CRONJOB = "cronjob"
    SPARK_SUBMIT = "spark-submit"
    KUBEFLOW = "kubeflow"
    APACHE = "apache"


class SparkImage(ApiModel):
    """The image of the jobs; it is fetched as the one of all other parts is."""

    repository: Annotated[str, Field(min_length=1)] = "onewriter/onewriter-spark"
    """Its name, with a registry where need be."""
    tag: Annotated[str, BeforeValidator(_text)] = ""
    """Its tag; empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """Its digest, which counts more than a tag."""
    spark_version: Annotated[str, Field(pattern=r"^4\.[2-9]\d*\.\d+$")] = "4.3.0"
    """The Spark in it, which operators of Spark want to be told."""


class TableValues(ApiModel):
    """Where the tables are."""

    uri: str = ""
    """A folder below /data of the volume, or a URL: s3://bucket/onewriter. Must be given."""
    volume_claim: str = ""
    """A PersistentVolumeClaim, mounted at /data; jobs of several pods need ReadWriteMany."""


class Checkpoint(ApiModel):
    """Where streams of Spark keep how far they are."""

    uri: str = ""
    """Spark's checkpointLocation for streams; the jobs here keep their offsets in the tables."""


class ObjectStore(ApiModel):
    """How an object store is reached."""

    secret_name: str = ""
    """A Secret whose keys become variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY."""
    options: Variables = {}
    """Variables that are no secret: AWS_REGION, AWS_ENDPOINT_URL."""
    ports: ListOf[Port] = (443,)
    """Ports that the network policy opens to it, where the table's uri is a URL."""
    peers: ListOf[Plain] = ()
    """Where it is, as a NetworkPolicy writes it; empty: anywhere."""


class TokenSecret(ApiModel):
    """What brokers know the jobs by."""

    secret_name: str = ""
    """A Secret with a token; empty: a projected one of the jobs' ServiceAccount."""
    key: Annotated[str, Field(min_length=1)] = "token"
    """The key in it."""


class Job(ApiModel):
    """A job that runs by the clock."""

    enabled: bool = True
    """Whether it runs."""
    schedule: Schedule = "@daily"
    """When, as cron writes it, in UTC."""
    suspend: bool = False
    """Whether it pauses."""
    args: ListOf[str] = ()
    """Further arguments of its verb of onewriter-pipeline."""
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    """What becomes of a run that is due while one is not over: Forbid: it is left out."""
    timeout_seconds: Annotated[int, Field(ge=60)] = 21_600
    """A run that takes longer is ended. The next one goes on where its last commit was."""
    cores: Annotated[int, Field(ge=1, le=64)] = 2
    """Tasks at a time, where the job is one pod; else those of the driver."""
    driver_memory: JavaMemory = "1g"
    """Heap of the driver. Python takes about 0.2 GiB for each core beside it."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "2Gi"}, limits={"memory": "3Gi"}
    )
    """Of the driver's pod; where the job is one pod, of the whole job."""


class Offload(Job):
    """The job that copies what topics hold to the tables."""

    schedule: Schedule = "7 * * * *"
    """When, as cron writes it, in UTC."""


class Audit(Job):
    """The job that checks that every topic had one writer at a time."""

    schedule: Schedule = "37 3 * * *"
    """When, as cron writes it, in UTC."""


class Snapshot(Job):
    """The job that keeps the newest message of each key of a topic."""

    enabled: bool = False
    """Whether it runs."""
    schedule: Schedule = "23 4 * * *"
    """When, as cron writes it, in UTC."""
    args: ListOf[str] = ("--tier=all", "--format=delta", "--overwrite")
    """Further arguments of its verb of onewriter-pipeline."""
    topic: str = ""
    """The topic. Must be given."""
    to: str = ""
    """The folder or URL that is written. Must be given."""


class Jobs(ApiModel):
    """What runs."""

    offload: Offload = Offload()
    """Copies what topics hold to the tables."""
    audit: Audit = Audit()
    """Checks that every topic had one writer at a time; a run that fails with 2 found otherwise."""
    snapshot: Snapshot = Snapshot()
    """Keeps the newest message of each key of a topic."""


class Trim(ApiModel):
    """Dropping from topics what the tables hold, once that is verified."""

    enabled: bool = False
    """Whether it is. Its account becomes one of the brokers' administrators."""
    schedule: Schedule = "27 * * * *"
    """When, as cron writes it: some time behind offload. What is not in the tables stays anyway."""
    keep_hours: Annotated[float, Field(ge=0, strict=False)] = 24.0
    """What was stored in the last hours stays."""
    args: ListOf[str] = ()
    """Further arguments: --dry-run."""
    resources: Resources = Resources(
        requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"}
    )
    """Of its pod; it needs no Spark."""


class Retention(ApiModel):
    """What goes from the store's memory."""

    trim: Trim = Trim()
    """Dropping from topics what the tables hold, once that is verified."""


class Executors(ApiModel):
    """The executors, where jobs are more than one pod."""

    instances: Annotated[int, Field(ge=0, le=1000)] = 2
    """How many; 0: the runners kubeflow and apache run the whole job in the driver's pod."""
    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """Tasks of one at a time."""
    memory: JavaMemory = "1g"
    """Heap of one."""
    memory_overhead: JavaMemory = "1g"
    """What Python and the JVM take beside it; both together are the pod's memory."""


class SparkValues(ApiModel):
    """The pipeline's jobs."""

    enabled: bool = False
    """Whether there are any."""
    runner: WordOf[Runner] = Runner.CRONJOB
    """Who runs them. cronjob: one pod a run. spark-submit: executors in pods of their own. kubeflow, apache: the operators of Spark of these projects, which must be there."""
    check_kinds: bool = True
    """Whether kubeflow and apache are refused in a cluster without these operators; false where Helm does not see the cluster."""
    image: SparkImage = SparkImage()
    """The image of the jobs; it is fetched as the one of all other parts is."""
    table: TableValues = TableValues()
    """Where the tables are."""
    checkpoint: Checkpoint = Checkpoint()
    """Where streams of Spark keep how far they are."""
    object_store: ObjectStore = ObjectStore()
    """How an object store is reached."""
    token: TokenSecret = TokenSecret()
    """What brokers know the jobs by."""
    topics: ListOf[str] = ()
    """Topics that jobs work on; empty: those that the pattern matches."""
    topics_pattern: str = ".*"
    """All topics whose full name matches."""
    jobs: Jobs = Jobs()
    """What runs."""
    retention: Retention = Retention()
    """What goes from the store's memory."""
    executors: Executors = Executors()
    """The executors, where jobs are more than one pod."""
    conf: Conf = {}
    """Settings of Spark, for all jobs."""
    scratch_size: Quantity = "10Gi"
    """What a pod may write to its scratch directory, for shuffles."""
    history: Annotated[int, Field(ge=1, le=100)] = 3
    """Runs that are kept to look at, of those that went well and of those that did not."""
    labels: Labels = {}
    """Labels beside our own."""
    annotations: Labels = {}
    """Annotations beside our own."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: ListOf[Plain] = ()
    """Taints that are tolerated, as Kubernetes writes them."""
    affinity: Plain = {}
    """An affinity, as Kubernetes writes it."""
    priority_class_name: str = ""
    """The PriorityClass; empty: the cluster's default."""

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if not self.enabled:
            return self
        if not self.table.uri:
            raise ValueError("spark.table.uri is missing: where the tables are")
        if "://" not in self.table.uri and not self.table.volume_claim:
            raise ValueError("spark.table.volumeClaim is missing: a folder of a pod goes with it")
        if not self.topics and not self.topics_pattern:
            raise ValueError("spark.topics and spark.topicsPattern are both empty")
        snapshot = self.jobs.snapshot
        if snapshot.enabled and not (snapshot.topic and snapshot.to):
            raise ValueError("spark.jobs.snapshot needs topic and to")
        return self
