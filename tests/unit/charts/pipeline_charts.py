"""The pipeline's part of the chart, taken apart: pods, applications, and what verbs are given."""

from __future__ import annotations

from typing import Any

import yaml
from tests.unit.charts.rendering import named, of_kind

from onewriter_operator.release.application import application

Json = dict[str, Any]

RUNNERS = ("cronjob", "spark-submit", "kubeflow", "apache")
S3: Json = {
    "table": {"uri": "s3://history/onewriter"},
    "objectStore": {"secretName": "bucket", "options": {"AWS_REGION": "eu-north-1"}},
}
TRIM: Json = {"retention": {"trim": {"enabled": True}}}
VERIFY: Json = {"verification": {"enabled": True}}


def values(runner: str = "cronjob", **more: Any) -> Json:
    return {"spark": {"enabled": True, "runner": runner, "checkKinds": False, **S3, **more}}


def ours(documents: list[Json]) -> list[Json]:
    """What there is for the pipeline alone."""
    return [
        each
        for each in documents
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "pipeline"
        or each["metadata"]["name"].endswith("-test-pipeline")
    ]


def applications(documents: list[Json]) -> list[Json]:
    """The applications that the CronJobs for Apache's operator would make."""
    data = named(documents, "ConfigMap", "onewriter-pipeline")["data"]
    return [application(yaml.safe_load(each), "system", "run", "uid") for each in data.values()]


def own_templates(documents: list[Json]) -> list[Json]:
    """The pods that are whole."""
    jobs = of_kind(documents, "CronJob")
    found = [each["spec"]["jobTemplate"]["spec"]["template"] for each in jobs]
    return found + of_kind(ours(documents), "Pod")


def sparks_templates(runner: str, documents: list[Json]) -> list[Json]:
    """The pods that Spark or an operator of it completes."""
    match runner:
        case "spark-submit":
            data = named(documents, "ConfigMap", "onewriter-pipeline")["data"]
            return [yaml.safe_load(each) for each in data.values()]
        case "kubeflow":
            wanted = of_kind(documents, "ScheduledSparkApplication")
            return [
                each["spec"]["template"][role]["template"]
                for each in wanted
                for role in ("driver", "executor")
            ]
        case "apache":
            return [
                each["spec"][role]["podTemplateSpec"]
                for each in applications(documents)
                for role in ("driverSpec", "executorSpec")
            ]
        case _:
            return []


def commands(runner: str, documents: list[Json]) -> dict[str, list[str]]:
    """What onewriter-pipeline is given, by verb."""
    if runner == "kubeflow":
        found = [
            each["spec"]["template"]["arguments"]
            for each in of_kind(documents, "ScheduledSparkApplication")
        ]
    elif runner == "apache":
        found = [each["spec"]["driverArgs"] for each in applications(documents)]
    else:
        found = []
    for each in of_kind(documents, "CronJob"):
        (container,) = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        if container["command"] == ["onewriter-pipeline"]:
            found.append(container["args"])
        elif container["command"] == ["spark-submit"]:
            at = container["args"].index("/opt/onewriter/pipeline.py")
            found.append(container["args"][at + 1 :])
    return {each[0]: each for each in found}
