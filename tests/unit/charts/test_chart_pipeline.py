"""The pipeline's jobs in the chart: each runner, with the standard of pods, rights, network and arguments."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import click
import helm_python
import pydantic
import pytest
import yaml
from tests.unit.charts.pipeline_charts import (
    RUNNERS,
    S3,
    TRIM,
    VERIFY,
    applications,
    commands,
    ours,
    own_templates,
    sparks_templates,
    values,
)
from tests.unit.charts.rendering import (
    CHART,
    ROOT,
    as_model,
    chart,
    configuration,
    named,
    of_kind,
    rendered,
    stable,
)

from onewriter_operator.installation import objects
from onewriter_pipeline.cli import VERBS

Json = dict[str, Any]

GOLDEN = ROOT / "tests" / "unit" / "charts" / "golden"
DRIVERS = {"pipeline", "driver", "spark-kubernetes-driver"}
"""The containers of drivers, by their names."""

SIZES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


# ------------------------------------------------------------ as a whole


def test_there_is_nothing_of_it_unless_it_is_wanted() -> None:
    assert ours(rendered()) == []
    assert ours(rendered({"spark": {"runner": "kubeflow", **S3}})) == []


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_rendered_chart_is_unchanged(runner: str) -> None:
    path = GOLDEN / f"pipeline-{runner}.yaml"
    text = stable(ours(rendered(values(runner, **TRIM))))
    if os.environ.get("ONEWRITER_GOLDEN") == "write":
        path.write_text(text)
    assert text == path.read_text(), "ONEWRITER_GOLDEN=write pytest tests/unit/charts writes it"


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_chart_passes_helm_lint(runner: str) -> None:
    report = helm_python.lint(
        CHART, values(runner, **TRIM), strict=True, namespace="system", kube_version="v1.36.3"
    )
    assert report["errors"] == []


@pytest.mark.parametrize("runner", RUNNERS)
def test_another_name_names_everything(runner: str) -> None:
    given = {**values(runner, **TRIM), "fullnameOverride": "queue"}
    for each in ours(rendered(given, name="anything")):
        assert each["metadata"]["name"].startswith("queue-")


WRONG: dict[str, Json] = {
    "an unknown runner": {"runner": "yarn"},
    "a job that is none": {"jobs": {"compact": {"schedule": "1 * * * *"}}},
    "a schedule that is none": {"jobs": {"offload": {"schedule": "hourly"}}},
    "two drivers at once": {"jobs": {"offload": {"concurrencyPolicy": "Allow"}}},
    "memory as Kubernetes writes it": {"executors": {"memory": "1Gi"}},
    "a Spark that is too old": {"image": {"sparkVersion": "4.1.0"}},
    "a variable that is none": {"objectStore": {"options": {"aws region": "x"}}},
    "an unknown value": {"tabel": {"uri": "s3://b"}},
    "a port that is none": {"objectStore": {"ports": [0]}},
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused(case: str) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        chart().validate_schema({"spark": WRONG[case]})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": {"uri": ""}}, "spark.table.uri is missing"),
        ({"table": {"uri": "/data/t"}}, "spark.table.volumeClaim is missing"),
        ({"topicsPattern": ""}, "spark.topics and spark.topicsPattern are both empty"),
        ({"jobs": {"snapshot": {"enabled": True}}}, "spark.jobs.snapshot needs topic and to"),
    ],
)
def test_chart_and_models_reject_values_that_cannot_work(given: Json, words: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=words):
        rendered(values(**given))
    with pytest.raises(pydantic.ValidationError, match=words):
        as_model(values(**given))


@pytest.mark.parametrize(
    ("runner", "kind"),
    [("kubeflow", "ScheduledSparkApplication"), ("apache", "SparkApplication")],
)
def test_an_operator_that_is_not_there_is_named(runner: str, kind: str) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=f"has no {kind} of .*cronjob"):
        rendered(values(runner, checkKinds=True))


def test_executors_are_more_than_none_where_they_do_the_work() -> None:
    with pytest.raises(helm_python.HelmRenderError, match="choose the runner cronjob"):
        rendered(values("spark-submit", executors={"instances": 0}))


# ------------------------------------------------------------ what is run


@pytest.mark.parametrize("runner", RUNNERS)
def test_every_verb_takes_its_arguments(runner: str) -> None:
    """As far as the verbs themselves judge them: nothing is connected to."""
    snapshot = {"enabled": True, "topic": "limits", "to": "s3://history/limits"}
    more = {**TRIM, **VERIFY, "checkpoint": {"uri": "s3://c"}, "jobs": {"snapshot": snapshot}}
    found = commands(runner, rendered(values(runner, **more)))
    assert set(found) == {"offload", "audit", "snapshot", "trim", "verify"}
    for verb, arguments in found.items():
        module = importlib.import_module(f"onewriter_pipeline.jobs.{verb}")
        command: click.Command = module.command
        with command.make_context(verb, arguments[1:]) as context:
            given = context.params
        assert given["url"] == "https://onewriter-broker.system.svc.cluster.local:8443"
        assert given["token_file"] == "/run/onewriter/token/token"  # noqa: S105 - a path
        assert given["ca_file"] == "/run/onewriter/broker-ca/ca.crt"
        assert given["table"] == "s3://history/onewriter"
        if verb == "snapshot":
            assert (given["topic"], given["path"]) == ("limits", "s3://history/limits")
        else:
            assert given["pattern"] == ".*"
        if verb == "trim":
            assert given["keep_hours"] == 24
        elif verb == "verify":
            assert given["keep_days"] is None
        else:
            assert "spark.sql.streaming.checkpointLocation=s3://c" in given["conf"]
            assert given["master"] == ("local[2]" if runner == "cronjob" else "")


def test_the_jobs_of_the_chart_are_verbs() -> None:
    assert set(type(as_model({}).spark.jobs).model_fields) <= set(VERBS)


def test_topics_arguments_and_settings_are_handed_on() -> None:
    given = values(
        topics=["a", "persistent://t/n/b"],
        conf={"spark.sql.files.maxPartitionBytes": 134217728, "spark.driver.memory": "3g"},
        jobs={"offload": {"args": ["--no-audit"]}, "audit": {"enabled": False}},
    )
    found = commands("cronjob", rendered(given))
    assert set(found) == {"offload"}
    arguments = found["offload"]
    assert {"--topic=a", "--topic=persistent://t/n/b", "--no-audit"} <= set(arguments)
    assert not any(each.startswith("--topics-pattern") for each in arguments)
    assert "--conf=spark.sql.files.maxPartitionBytes=134217728" in arguments
    memory = [each for each in arguments if each.startswith("--conf=spark.driver.memory=")]
    assert memory == ["--conf=spark.driver.memory=3g"], "what a person says counts"


@pytest.mark.parametrize("runner", RUNNERS)
def test_there_are_never_two_drivers_by_intention(runner: str) -> None:
    documents = rendered(values(runner, **TRIM))
    for each in of_kind(documents, "CronJob", "ScheduledSparkApplication"):
        assert each["spec"]["concurrencyPolicy"] == "Forbid"
    for each in of_kind(documents, "CronJob"):
        job = each["spec"]["jobTemplate"]["spec"]
        assert job["podReplacementPolicy"] == "Failed"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
    for each in of_kind(documents, "ScheduledSparkApplication"):
        assert each["spec"]["template"]["restartPolicy"] == {"type": "Never"}
    if runner == "apache":
        for each in applications(documents):
            tolerated = each["spec"]["applicationTolerations"]
            assert tolerated["restartConfig"] == {"restartPolicy": "Never"}


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_run_that_takes_too_long_is_ended(runner: str) -> None:
    documents = rendered(values(runner, jobs={"offload": {"timeoutSeconds": 1234}}, **TRIM))
    ended = {
        template["metadata"]["labels"]["onewriter.dev/job"]: template["spec"]
        for template in sparks_templates(runner, documents)
        if template["spec"]["containers"][0]["name"] in DRIVERS
    }
    for each in of_kind(documents, "CronJob"):
        job = each["spec"]["jobTemplate"]["spec"]
        ended.setdefault(job["template"]["metadata"]["labels"]["onewriter.dev/job"], job)
    limits = {name: spec["activeDeadlineSeconds"] for name, spec in ended.items()}
    assert limits == {"offload": 1234, "audit": 21600, "trim": 21600}


def test_a_violation_is_not_looked_for_again() -> None:
    for each in of_kind(rendered(values(**TRIM)), "CronJob"):
        first, _ = each["spec"]["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
        assert first["action"] == "FailJob"
        assert first["onExitCodes"]["values"] == [2]


def test_a_whole_job_in_one_pod_of_an_operator() -> None:
    alone = {"executors": {"instances": 0}}
    for each in of_kind(rendered(values("kubeflow", **alone)), "ScheduledSparkApplication"):
        conf = each["spec"]["template"]["sparkConf"]
        assert conf["spark.kubernetes.driver.master"] == "local[2]"
    for each in applications(rendered(values("apache", **alone))):
        assert each["spec"]["sparkConf"]["spark.kubernetes.driver.master"] == "local[2]"
        assert "spark.executor.instances" not in each["spec"]["sparkConf"]


# ------------------------------------------------------------ pods


@pytest.mark.parametrize("runner", RUNNERS)
def test_pods_meet_the_restricted_standard(runner: str) -> None:
    documents = rendered(values(runner, **TRIM))
    templates = own_templates(documents) + sparks_templates(runner, documents)
    assert len(templates) >= 4
    for template in templates:
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = pod["containers"]
        is_starter = container["name"] == "start"
        assert pod["securityContext"]["runAsUser"] == (65532 if is_starter else 185)
        security = container["securityContext"]
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
        assert "readOnly" not in mounts["/tmp"]  # noqa: S108 - of the pod
        assert {each["name"] for each in mounts.values()} == {
            each["name"] for each in pod["volumes"]
        }


@pytest.mark.parametrize("runner", RUNNERS)
def test_pods_prove_who_they_are_and_get_the_keys_of_the_object_store(runner: str) -> None:
    documents = rendered(values(runner, **TRIM))
    templates = own_templates(documents) + sparks_templates(runner, documents)
    for template in templates:
        (container,) = template["spec"]["containers"]
        if container["name"] in {"start", "test"}:
            continue
        assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
        assert {"name": "AWS_REGION", "value": "eu-north-1"} in container["env"]
        (volume,) = [each for each in template["spec"]["volumes"] if each["name"] == "token"]
        (source,) = volume["projected"]["sources"]
        assert source["serviceAccountToken"]["audience"] == "onewriter"


def test_a_token_and_a_volume_may_be_given() -> None:
    given: Json = {
        "table": {"uri": "/data/t", "volumeClaim": "tables"},
        "token": {"secretName": "jwt"},
    }
    for template in own_templates(of_kind(rendered(values(**given)), "CronJob")):
        volumes = {each["name"]: each for each in template["spec"]["volumes"]}
        assert volumes["data"]["persistentVolumeClaim"] == {"claimName": "tables"}
        (source,) = volumes["token"]["projected"]["sources"]
        assert source["secret"]["items"] == [{"key": "token", "path": "token"}]


def test_spark_uses_the_scratch_directory_that_there_is() -> None:
    """A volume that is called so is what Spark shuffles in; it makes no other."""
    for runner in ("spark-submit", "kubeflow", "apache"):
        for template in sparks_templates(runner, rendered(values(runner))):
            (scratch,) = [each for each in template["spec"]["volumes"] if "emptyDir" in each]
            assert scratch["name"].startswith("spark-local-dir-")
            assert scratch["emptyDir"]["sizeLimit"] == "10Gi"


def test_heaps_fit_into_the_pods() -> None:
    jobs = as_model({}).spark.jobs
    for name in type(jobs).model_fields:
        job = getattr(jobs, name)
        limit = job.resources.limits["memory"]
        heap = int(job.driver_memory[:-1]) * {"m": 2**20, "g": 2**30}[job.driver_memory[-1]]
        assert heap + job.cores * 0.3 * 2**30 < int(limit[:-2]) * SIZES[limit[-2:]]


# ------------------------------------------------------------ rights and network


@pytest.mark.parametrize("runner", RUNNERS)
def test_accounts_exist_and_have_only_what_their_runner_needs(runner: str) -> None:
    documents = rendered(values(runner, **TRIM))
    accounts = {each["metadata"]["name"] for each in of_kind(documents, "ServiceAccount")}
    assert {each["spec"]["serviceAccountName"] for each in own_templates(documents)} <= accounts
    granted = {
        each["metadata"]["name"]: {kind for rule in each["rules"] for kind in rule["resources"]}
        for each in of_kind(ours(documents), "Role")
    }
    pods = {"pods", "services", "configmaps", "persistentvolumeclaims"}
    wanted = {} if runner == "cronjob" else {"onewriter-pipeline": pods}
    if runner == "apache":
        wanted["onewriter-pipeline-start"] = {"sparkapplications"}
    assert granted == wanted
    for each in of_kind(ours(documents), "Role"):
        assert all("*" not in rule["verbs"] for rule in each["rules"])


@pytest.mark.parametrize("runner", RUNNERS)
def test_only_drivers_may_use_the_api(runner: str) -> None:
    documents = rendered(values(runner, **TRIM))
    may = {
        template["spec"]["containers"][0]["name"]
        for template in own_templates(documents) + sparks_templates(runner, documents)
        if template["spec"]["automountServiceAccountToken"]
    }
    drivers = {
        "cronjob": set(),
        "spark-submit": {"pipeline"},
        "kubeflow": {"spark-kubernetes-driver"},
        "apache": {"driver", "start"},
    }
    assert may == drivers[runner]


def test_the_pipelines_accounts_have_its_role_and_administer_nothing() -> None:
    account = "system:serviceaccount:system:onewriter-pipeline"
    assert configuration(rendered(values())).brokers.access.pipelines == (account,)
    given = {**values(**TRIM), "brokers": {"access": {"pipelines": ["alice"]}}}
    documents = rendered(given)
    brokers = configuration(documents).brokers
    subject = f"{account}-trim"
    assert brokers.access.pipelines == ("alice", account, subject)
    assert brokers.authentication.admin_subjects == ()
    account = subject.rpartition(":")[2]
    using = [
        each["metadata"]["name"]
        for each in of_kind(documents, "CronJob")
        if each["spec"]["jobTemplate"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    ]
    assert using == ["onewriter-trim"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_verification_is_scheduled_with_the_least_rights(runner: str) -> None:
    tables: Json = {"table": {"uri": "/data/t", "volumeClaim": "tables"}}
    chosen: Json = {"verification": {"enabled": True, "args": ["--keep-days=30"], "suspend": True}}
    documents = rendered(values(runner, **tables, **chosen))
    account = "onewriter-pipeline-verify"
    job = named(documents, "CronJob", "onewriter-verify")["spec"]
    assert (job["schedule"], job["suspend"], job["concurrencyPolicy"]) == (
        "53 4 * * *",
        True,
        "Forbid",
    )
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (account, False)
    (container,) = pod["containers"]
    assert container["args"][-1] == "--keep-days=30"
    assert container["resources"]["limits"] == {"memory": "2Gi"}
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container["volumeMounts"]}
    assert mounts["/data"] is True
    assert not named(documents, "ServiceAccount", account)["automountServiceAccountToken"]
    bound = [
        subject["name"]
        for each in of_kind(documents, "RoleBinding", "ClusterRoleBinding")
        for subject in each["subjects"]
    ]
    assert account not in bound
    subjects = configuration(documents).brokers.access.pipelines
    assert f"system:serviceaccount:system:{account}" in subjects


def test_verification_is_off_by_default() -> None:
    documents = rendered(values())
    assert "onewriter-verify" not in {
        each["metadata"]["name"] for each in of_kind(documents, "CronJob", "ServiceAccount")
    }


def test_failed_verification_has_an_alert() -> None:
    given = {**values(**VERIFY), "monitoring": {"prometheusRule": {"enabled": True}}}
    documents = rendered(given)
    (group,) = of_kind(documents, "PrometheusRule")[0]["spec"]["groups"]
    (rule,) = [each for each in group["rules"] if each["alert"] == "OnewriterVerificationFailed"]
    pattern = re.search(r'namespace="system", job_name=~"([^"]+)"', rule["expr"])
    assert pattern is not None
    jobs = [each["metadata"]["name"] for each in of_kind(documents, "CronJob")]
    watched = [each for each in jobs if re.fullmatch(pattern[1], f"{each}-29411693")]
    assert sorted(watched) == ["onewriter-audit", "onewriter-verify"]


@pytest.mark.parametrize("runner", RUNNERS)
def test_the_network_leads_to_brokers_and_object_store_and_not_to_the_store(runner: str) -> None:
    policy = named(rendered(values(runner)), "NetworkPolicy", "onewriter-pipeline")["spec"]
    open_ports = {
        port["port"]
        for rule in policy["egress"]
        for port in rule.get("ports", ())
        if "port" in port
    }
    api = set() if runner == "cronjob" else {443, 6443}
    assert open_ports == {53, 6651, 8443, 443} | api
    to = [each for rule in policy["egress"] for each in rule.get("to", ())]
    parts = {each["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for each in to}
    assert parts == ({"broker"} if runner == "cronjob" else {"broker", "pipeline"})
    assert bool(policy["ingress"]) == (runner != "cronjob")
    assert all("ports" in rule or rule["to"] for rule in policy["egress"])


def test_a_folder_needs_no_way_out() -> None:
    given: Json = {"table": {"uri": "/data/t", "volumeClaim": "tables"}}
    policy = named(rendered(values(**given)), "NetworkPolicy", "onewriter-pipeline")["spec"]
    assert len(policy["egress"]) == 2, "DNS and brokers"


def test_brokers_let_jobs_in_where_only_some_may_be_clients() -> None:
    given = {**values(), "networkPolicies": {"clients": [{"namespaceSelector": {}}]}}
    wanted = configuration(rendered(given))
    policy = named(objects(wanted), "NetworkPolicy", "onewriter-broker")["spec"]
    (ways,) = [
        rule
        for rule in policy["ingress"]
        if any("namespaceSelector" in each for each in rule.get("from", ()))
    ]
    pods = [each["podSelector"]["matchLabels"] for each in ways["from"] if "podSelector" in each]
    labels = own_templates(of_kind(rendered(given), "CronJob"))[0]["metadata"]["labels"]
    assert any(selector.items() <= labels.items() for selector in pods)
    assert 8443 in {each["port"] for each in ways["ports"]}


# ------------------------------------------------------------ metrics, test, operators' kinds


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_monitored_driver_serves_metrics_on_the_scraped_port(runner: str) -> None:
    documents = rendered({**values(runner), "monitoring": {"podMonitor": {"enabled": True}}})
    monitor = named(documents, "PodMonitor", "onewriter-pipeline")["spec"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["path"] == "/metrics/prometheus/"
    drivers = [
        template
        for template in own_templates(of_kind(documents, "CronJob"))
        + sparks_templates(runner, documents)
        if template["spec"]["containers"][0]["name"] in DRIVERS
    ]
    assert drivers
    for template in drivers:
        wanted = monitor["selector"]["matchLabels"].items()
        assert wanted <= template["metadata"]["labels"].items()
        (port,) = template["spec"]["containers"][0]["ports"]
        assert (port["name"], port["containerPort"]) == (endpoint["port"], 4040)
        reported = {each["name"] for each in template["spec"]["containers"][0]["env"]}
        assert ("SPARK_LOCAL_IP" in reported) == (runner == "cronjob"), "which listens on loopback"
    for arguments in commands(runner, documents).values():
        assert "--conf=spark.ui.enabled=true" in arguments


def test_helm_test_makes_a_round_trip_on_a_topic_of_its_own() -> None:
    documents = rendered(values())
    name = "onewriter-test-pipeline"
    pod = named(documents, "Pod", name)["spec"]
    topic = named(documents, "ExclusiveTopic", name)["spec"]
    claim = named(documents, "ProducerClaim", name)["spec"]
    script = named(documents, "ConfigMap", name)["data"]["round_trip.py"]
    assert script == (CHART / "round_trip.py").read_text()
    assert topic["topic"] in pod["containers"][0]["args"]
    assert claim["subject"] == {"serviceAccountName": pod["serviceAccountName"]}
    policy = named(documents, "NetworkPolicy", "onewriter-checks")["spec"]["egress"]
    assert 8443 in {port["port"] for rule in policy for port in rule["ports"]}
    assert of_kind(ours(rendered({**values(), "checks": {"test": False}})), "Pod") == []


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "pipeline").glob("*.yaml")), ids=lambda path: path.stem
)
def test_examples_are_values_that_the_chart_takes(path: Path) -> None:
    given = yaml.safe_load(path.read_text())
    chart().validate_schema(given)
    as_model(given)
    found = commands(given["spark"].get("runner", "cronjob"), rendered(given))
    for verb, arguments in found.items():
        module = importlib.import_module(f"onewriter_pipeline.jobs.{verb}")
        with module.command.make_context(verb, arguments[1:]) as context:
            assert context.params["table"] == given["spark"]["table"]["uri"]
    assert {"offload", "audit"} <= set(found)


KUBEFLOW: Json = {
    "": {"concurrencyPolicy", "failedRunHistoryLimit", "schedule", "successfulRunHistoryLimit",
         "suspend", "template", "timeZone"},
    "template": {"arguments", "driver", "executor", "image", "imagePullPolicy", "imagePullSecrets",
                 "mainApplicationFile", "mode", "pythonVersion", "restartPolicy", "sparkVersion",
                 "type"},
    "driver": {"coreRequest", "cores", "memory", "memoryOverhead", "serviceAccount", "template"},
    "executor": {"cores", "instances", "memory", "memoryOverhead", "serviceAccount", "template"},
}  # fmt: skip
APACHE = {"applicationTolerations", "driverArgs", "driverSpec", "executorSpec", "pyFiles",
          "runtimeVersions", "sparkConf"}  # fmt: skip
"""Fields of these operators' definitions that are used here, v1beta2 of 2.5 and v1 of 1.0."""


def test_operators_are_given_fields_that_they_know() -> None:
    pulled = {"image": {"pullSecrets": ["registry"]}}
    for each in of_kind(rendered({**values("kubeflow"), **pulled}), "ScheduledSparkApplication"):
        spec = each["spec"]
        assert set(spec) == KUBEFLOW[""]
        assert set(spec["template"]) == KUBEFLOW["template"]
        for role in ("driver", "executor"):
            assert set(spec["template"][role]) == KUBEFLOW[role]
        assert isinstance(spec["template"]["driver"]["cores"], int)
        names = {
            spec["template"][role]["template"]["spec"]["containers"][0]["name"]
            for role in ("driver", "executor")
        }
        assert names == {"spark-kubernetes-driver", "spark-kubernetes-executor"}, "it asks for them"
    for each in applications(rendered({**values("apache"), **pulled})):
        assert set(each["spec"]) == APACHE
        assert all(isinstance(value, str) for value in each["spec"]["sparkConf"].values())
        assert set(each["spec"]["driverSpec"]) == {"podTemplateSpec"}
