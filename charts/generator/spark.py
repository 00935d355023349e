"""Values of the pipeline: its Spark jobs and their runner."""

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
    """A Spark setting is text: converts true and 2 of YAML."""
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
    """The runner of the jobs."""

    CRONJOB = "cronjob"
    SPARK_SUBMIT = "spark-submit"
    KUBEFLOW = "kubeflow"
    APACHE = "apache"


class SparkImage(ApiModel):
    """The image of the jobs; the pull policy and the pull Secrets are those of the image of all components."""

    repository: Annotated[str, Field(min_length=1)] = "onewriter/onewriter-spark"
    """The image's name, with a registry if needed."""
    tag: Annotated[str, BeforeValidator(_text)] = ""
    """The image's tag; empty: the chart's appVersion."""
    digest: Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")] = ""
    """The image's digest; overrides the tag."""
    spark_version: Annotated[str, Field(pattern=r"^4\.[2-9]\d*\.\d+$")] = "4.3.0"
    """The version of Spark in the image, for Spark's operators."""


class TableValues(ApiModel):
    """The place of the tables."""

    uri: str = ""
    """A folder below /data of the volume, or a URL: s3://bucket/onewriter. Required."""
    volume_claim: str = ""
    """A PersistentVolumeClaim, mounted at /data; jobs of several pods need ReadWriteMany."""


class Checkpoint(ApiModel):
    """Checkpoints of Spark streams."""

    uri: str = ""
    """Spark's checkpointLocation for streams; the jobs here keep their offsets in the tables."""


class ObjectStore(ApiModel):
    """Access to an object store."""

    secret_name: str = ""
    """A Secret whose keys become environment variables: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY."""
    options: Variables = {}
    """Environment variables that are not secret: AWS_REGION, AWS_ENDPOINT_URL."""
    ports: ListOf[Port] = (443,)
    """Ports of the object store that the network policy allows, if the table's uri is a URL."""
    peers: ListOf[Plain] = ()
    """Peers of the object store in NetworkPolicy syntax; empty: any."""


class TokenSecret(ApiModel):
    """The token that the jobs present to brokers."""

    secret_name: str = ""
    """A Secret with a token; empty: a projected token of the jobs' ServiceAccount."""
    key: Annotated[str, Field(min_length=1)] = "token"
    """The key in it."""


class Job(ApiModel):
    """A scheduled job."""

    enabled: bool = True
    """Whether to install the job."""
    schedule: Schedule = "@daily"
    """Schedule in cron syntax, in UTC."""
    suspend: bool = False
    """Whether the schedule is suspended."""
    args: ListOf[str] = ()
    """Further arguments for the job's verb of onewriter-pipeline."""
    concurrency_policy: Literal["Forbid", "Replace"] = "Forbid"
    """What happens when a run is due while the previous one still runs. Forbid: the new run is skipped. Replace: the previous run is ended."""
    timeout_seconds: Annotated[int, Field(ge=60)] = 21_600
    """A run that takes longer is ended. The next run continues after its last commit."""
    cores: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of concurrent tasks if the job is one pod; otherwise cores of the driver."""
    driver_memory: JavaMemory = "1g"
    """Heap of the driver. Python needs about 0.2 GiB for each core in addition."""
    resources: Resources = Resources(
        requests={"cpu": "500m", "memory": "2Gi"}, limits={"memory": "3Gi"}
    )
    """Resources of the driver's pod; if the job is one pod, of the whole job."""


class Offload(Job):
    """The job that copies the topics' messages to the tables."""

    schedule: Schedule = "7 * * * *"
    """Schedule in cron syntax, in UTC."""


class Audit(Job):
    """The job that checks that every topic had one writer at a time."""

    schedule: Schedule = "37 3 * * *"
    """Schedule in cron syntax, in UTC."""


class Snapshot(Job):
    """The job that keeps the newest message of each key of a topic."""

    enabled: bool = False
    """Whether to install the job."""
    schedule: Schedule = "23 4 * * *"
    """Schedule in cron syntax, in UTC."""
    args: ListOf[str] = ("--tier=all", "--format=delta", "--overwrite")
    """Further arguments for the job's verb of onewriter-pipeline."""
    topic: str = ""
    """The topic. Required."""
    to: str = ""
    """The folder or URL to write. Required."""


class Jobs(ApiModel):
    """The scheduled jobs."""

    offload: Offload = Offload()
    """Copies the topics' messages to the tables."""
    audit: Audit = Audit()
    """Checks that every topic had one writer at a time; a run that fails with exit code 2 found a violation."""
    snapshot: Snapshot = Snapshot()
    """Keeps the newest message of each key of a topic."""


class Trim(ApiModel):
    """Drops messages from topics after it verified that the tables hold them."""

    enabled: bool = False
    """Whether to install the job. Its account gets the role pipeline: it may read every topic and trim it."""
    schedule: Schedule = "27 * * * *"
    """Schedule in cron syntax, some time after offload. Messages that are not in the tables always stay."""
    keep_hours: Annotated[float, Field(ge=0, strict=False)] = 24.0
    """Messages of this many hours stay."""
    args: ListOf[str] = ()
    """Further arguments: --dry-run."""
    resources: Resources = Resources(
        requests={"cpu": "100m", "memory": "256Mi"}, limits={"memory": "1Gi"}
    )
    """Resources of the job's pod; it needs no Spark."""


class Verification(ApiModel):
    """Compares the tables with the logs, and with what brokers witnessed of their copies."""

    enabled: bool = False
    """Whether to install the job. Its account gets the role pipeline, because it reads every topic; it reads the tables' volume only."""
    schedule: Schedule = "53 4 * * *"
    """Schedule in cron syntax, in UTC. A run reads all tables."""
    suspend: bool = False
    """Whether the schedule is suspended."""
    args: ListOf[str] = ()
    """Further arguments: --keep-days=N, if `table --keep-days=N` drops old days."""
    timeout_seconds: Annotated[int, Field(ge=60)] = 21600
    """A run that takes longer is ended."""
    resources: Resources = Resources(
        requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "2Gi"}
    )
    """Resources of the job's pod; it needs no Spark."""


class Retention(ApiModel):
    """Removal of messages from the store's memory."""

    trim: Trim = Trim()
    """Drops messages from topics after it verified that the tables hold them."""


class Executors(ApiModel):
    """The executors, for runners with several pods."""

    instances: Annotated[int, Field(ge=0, le=1000)] = 2
    """Number of executors; 0: the runners kubeflow and apache run the whole job in the driver's pod."""
    cores: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of concurrent tasks of an executor."""
    memory: JavaMemory = "1g"
    """Heap of an executor."""
    memory_overhead: JavaMemory = "1g"
    """Memory for Python and the JVM in addition to the heap; the pod's memory is the sum of both."""


class SparkValues(ApiModel):
    """The pipeline's jobs."""

    enabled: bool = False
    """Whether to install them."""
    runner: WordOf[Runner] = Runner.CRONJOB
    """The runner of the jobs. cronjob: one pod per run. spark-submit: executors in separate pods. kubeflow, apache: these projects' Spark operators, which must be installed."""
    check_kinds: bool = True
    """Whether kubeflow and apache are refused in a cluster without these operators; set false if Helm cannot see the cluster."""
    image: SparkImage = SparkImage()
    """The image of the jobs; the pull policy and the pull Secrets are those of the image of all components."""
    table: TableValues = TableValues()
    """The place of the tables."""
    checkpoint: Checkpoint = Checkpoint()
    """Checkpoints of Spark streams."""
    object_store: ObjectStore = ObjectStore()
    """Access to an object store."""
    token: TokenSecret = TokenSecret()
    """The token that the jobs present to brokers."""
    topics: ListOf[str] = ()
    """Topics that the jobs process; empty: those that match the pattern."""
    topics_pattern: str = ".*"
    """A regular expression for full names of topics."""
    jobs: Jobs = Jobs()
    """The scheduled jobs."""
    retention: Retention = Retention()
    """Removal of messages from the store's memory."""
    verification: Verification = Verification()
    """Compares the tables with the logs, and with what brokers witnessed of their copies."""
    executors: Executors = Executors()
    """The executors, for runners with several pods."""
    conf: Conf = {}
    """Spark settings for all jobs."""
    scratch_size: Quantity = "10Gi"
    """Size of a pod's scratch directory, for shuffles."""
    history: Annotated[int, Field(ge=1, le=100)] = 3
    """Number of finished runs to keep, each for successful and failed runs."""
    labels: Labels = {}
    """Additional labels."""
    annotations: Labels = {}
    """Additional annotations."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: ListOf[Plain] = ()
    """Tolerations in Kubernetes syntax."""
    affinity: Plain = {}
    """Affinity in Kubernetes syntax."""
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
