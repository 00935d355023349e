"""The verbs of ``kubectl onewriter`` with a cluster of scripted answers."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from tests.unit.kubectl.fake_kubectl import (
    AWAY,
    FORBIDDEN,
    NOT_FOUND,
    POD,
    WAITER,
    WRITER,
    FakeKubectl,
    Json,
    claim,
    condition,
    service,
    topic,
    transition,
)

from onewriter_core.errors import ConfigurationError, OnewriterError, Refused, Undecided
from onewriter_kubectl import cli, redaction


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeKubectl:
    found = FakeKubectl(tmp_path)
    monkeypatch.setenv("ONEWRITER_KUBECTL", str(found.program))
    monkeypatch.setattr("onewriter_kubectl.orders.secrets.token_hex", lambda _: "5eed")
    found.fails("get services", FORBIDDEN)
    found.has("get events")
    found.has("get producerclaims", claim("primary", WRITER, WAITER), claim("x", topic="other"))
    found.shows("get exclusivetopics.onewriter.dev orders", topic())
    found.has("get exclusivetopics.onewriter.dev --output", topic(), topic("empty", holder=None))
    return found


def run(*arguments: str, stdin: str = "") -> Result:
    """Run a verb; raises its exceptions."""
    result = CliRunner().invoke(cli.onewriter, arguments, input=stdin)
    if isinstance(result.exception, OnewriterError):
        raise result.exception
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# ------------------------------------------------------------ the installation


def installation(ready: str, message: str) -> Json:
    return {
        "kind": "OneWriter",
        "metadata": {"name": "ow", "namespace": "system"},
        "status": {
            "brokers": {"summary": "3/3"},
            "store": {
                "state": "Reachable",
                "url": "redis://store:6379",
                "memory": {"summary": "62%", "usedBytes": 650117120, "limitBytes": 1048576000},
            },
            "buckets": {
                "waiting": 2,
                "reasons": [{"buckets": 2, "reason": "the store has another dataset"}],
            },
            "certificates": [
                {"name": "broker", "reportedBy": "ow-broker-0", "notAfter": "2126-01-01T00:00:00Z"}
            ],
            "conditions": [condition("Ready", ready, "BucketsWaiting") | {"message": message}],
        },
    }


def test_the_verb_installation_shows_what_needs_attention(fake: FakeKubectl) -> None:
    found = installation("False", "2 of 64 buckets wait")
    fake.shows("get onewriters.onewriter.dev ow", found)
    result = CliRunner().invoke(cli.onewriter, ["installation", "--installation", "system/ow"])
    assert isinstance(result.exception, Refused)
    assert "not ready: 2 of 64 buckets wait" in str(result.exception)
    for text in ("3/3", "62%", "620 MiB", "the store has another dataset", "ow-broker-0"):
        assert text in result.output
    assert "--namespace=system" in fake.calls[0]


def test_the_verb_installation_succeeds_if_it_is_ready(fake: FakeKubectl) -> None:
    fake.shows("get onewriters.onewriter.dev ow", installation("True", "all is served"))
    assert "True: all is served" in run("installation", "--installation", "system/ow").output
    found = json.loads(run("installation", "--installation", "system/ow", "-o", "json").output)
    assert found["status"]["brokers"]["summary"] == "3/3"


# ------------------------------------------------------------ asking


def test_the_verb_timeline_draws_epochs_and_has_them_for_programs(fake: FakeKubectl) -> None:
    output = run("timeline", "orders", "-n", "shop").output.splitlines()
    assert output[0].startswith("EPOCH")
    found = json.loads(run("timeline", "orders", "-n", "shop", "-o", "json").output)["epochs"]
    assert [line.split()[0] for line in output[1:]] == [str(each["epoch"]) for each in found]


def test_the_verb_who_prints_one_line(fake: FakeKubectl) -> None:
    output = run("who", "orders", "-n", "shop").output
    assert output.startswith("shop/orders: writer-1 (producer w1), claim primary writes since ")
    assert output.endswith(", epoch 7, 1 waiting\n")
    assert output.count("\n") == 1
    assert "--namespace=shop" in fake.calls[0]
    assert run("who", "xt/orders").output == output


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            {
                "holder": None,
                "waiting": 0,
                "conditions": [condition("WriterActive", "False", "Vacant")],
            },
            "shop/orders: no producer writes, epoch 7\n",
        ),
        (
            {"holder": None, "conditions": [condition("WriterActive", "False", "TakingOver")]},
            "shop/orders: between two writers, epoch 7, 1 waiting\n",
        ),
        (
            {"conditions": [condition("WriterActive", "True", "Shared")], "waiting": 0},
            "shop/orders: shared producers write, epoch 7\n",
        ),
        (
            {"conditions": [], "holder": None, "waiting": None, "epoch": None},
            (
                "shop/orders: no producer writes, epoch - (as known last; "
                "not known just now: no operator has looked at it yet)\n"
            ),
        ),
    ],
)
def test_the_verb_who_reports_a_topic_without_a_writer(
    fake: FakeKubectl, shown: Json, expected: str
) -> None:
    fake.shows("orders --output", topic(**shown))
    assert run("who", "orders").output == expected


def test_lists_are_printed_as_tables_or_as_json(fake: FakeKubectl) -> None:
    lines = run("who", "-A").output.splitlines()
    (line,) = [line.split() for line in lines if " orders " in line]
    assert line[:5] == ["shop", "orders", "7", "w1", "writer-1"]
    assert line[-3:] == ["1", "Held", "True"]
    assert any(" empty " in line for line in lines)
    assert "--all-namespaces" in fake.calls[0]
    assert "NAMESPACE" not in run("status").output
    assert "DURABILITY" in run("status", "-o", "wide").output
    found = json.loads(run("status", "-o", "json").output)["topics"]
    assert [each["metadata"]["name"] for each in found] == ["orders", "empty"]
    fake.has("get exclusivetopics.onewriter.dev --output")
    assert run("who").output == "no topics\n"


def test_status_shows_everything_of_one_topic(fake: FakeKubectl) -> None:
    event = {
        "type": "Warning",
        "reason": "WriterFenced",
        "message": "The writer in pod writer-0 was fenced",
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }
    fake.has("get events", event)
    fenced = {
        "pod": "writer-0",
        "podUID": "u0",
        "epoch": 5,
        "cause": "Silent",
        "at": "T",
        "outcome": "Evicted",
    }
    partitions = [{"partition": 0, "epoch": 7, "producerName": "w1"}]
    fake.shows("orders --output", topic(fencedPods=[fenced], partitions=partitions))
    output = run("status", "orders").output
    for word in (
        "holder:       writer-1 (producer w1)",
        "conditions:",
        "WriterActive",
        "claims:",
        "partitions:",
        "transitions:",
        "fenced pods:",
        "Evicted",
        "events:",
        "WriterFenced",
    ):
        assert word in output
    (waiter,) = [line.split() for line in output.splitlines() if " Waiting " in line]
    assert waiter == ["primary", "Waiting", "-", "w2", "writer-2", "1", "-"]
    assert "other" not in output
    assert "involvedObject.name=orders" in fake.calls[-1]


def test_status_for_scripts_is_the_objects(fake: FakeKubectl) -> None:
    whole = yaml.safe_load(run("status", "orders", "-o", "yaml").output)
    assert whole["topic"]["status"]["epoch"] == 7
    assert [each["metadata"]["name"] for each in whole["claims"]] == ["primary"]
    brief = json.loads(run("who", "orders", "-o", "json").output)
    assert (brief["epoch"], brief["holder"]["pod"]) == (7, "writer-1")


def test_events_that_may_not_be_seen_are_left_out(fake: FakeKubectl) -> None:
    fake.fails("get events", FORBIDDEN)
    assert "events:" not in run("status", "orders").output


def test_why_asks_for_what_it_needs_and_no_more(fake: FakeKubectl) -> None:
    output = run("why", "orders").output
    assert "is written by writer-1 (producer w1)" in output
    assert "Nothing needs attention." in output
    request = " ".join(fake.calls)
    assert "poddisruptionbudgets" not in request
    assert "port-forward" not in request


def test_why_finds_the_budget_and_the_missing_operator(fake: FakeKubectl) -> None:
    fenced = {
        "pod": "writer-0",
        "podUID": "u0",
        "epoch": 5,
        "cause": "Silent",
        "at": "T",
        "outcome": "BlockedByPDB",
    }
    gone = fenced | {"pod": "writer-9", "podUID": "u9", "outcome": "Pending"}
    fake.shows("orders --output", topic(fencedPods=[fenced, gone]))
    fake.shows("get pods writer-0", {"metadata": {"name": "writer-0", "labels": {"app": "writer"}}})
    fake.fails("get pods writer-9", 'Error from server (NotFound): pods "writer-9" not found')
    selector = {"matchLabels": {"app": "writer"}}
    fake.has(
        "get poddisruptionbudgets",
        {"metadata": {"name": "writers"}, "spec": {"selector": selector}, "status": {}},
    )
    fake.has("get services", service())
    fake.shows("get leases", {"spec": {}})
    output = run("why", "orders").output
    assert "PodDisruptionBudget writers allows 0 disruptions" in output
    assert "This may be outdated: no operator leads just now." in output
    fake.fails("get poddisruptionbudgets", FORBIDDEN)
    fake.fails("get pods writer", FORBIDDEN)
    assert "you may not see which one" in run("why", "orders").output


def test_a_wrong_command_line_is_refused(fake: FakeKubectl) -> None:
    for wrong in (
        ("who", "pod/orders"),
        ("who", "orders", "-A"),
        ("status", "orders", "-A"),
        ("status", "--live"),
    ):
        with pytest.raises(ConfigurationError):
            run(*wrong)
    fake.shows("orders --output", topic(topic=None))
    with pytest.raises(Refused, match="no operator has looked at it yet"):
        run("history", "orders")
    fake.fails("orders", NOT_FOUND)
    with pytest.raises(Refused, match="not found"):
        run("why", "orders")


def test_help_names_every_verb() -> None:
    output = run("--help").output
    assert all(f"\n  {verb}" in output for verb in cli.onewriter.commands)
    assert set(cli.onewriter.commands) == {
        *("who", "status", "timeline", "history", "why"),
        *("fence", "handover", "reassign", "report"),
        "installation",
    }


# ------------------------------------------------------------ orders


def fenced_topic() -> Json:
    transitions = [transition(8, "FencedByAdministrator", "w2", "writer-2", 3)]
    holder = {"producerName": "w2", "pod": "writer-2"}
    return topic(epoch=8, holder=holder, transitions=transitions)


def test_a_fence_is_asked_about_and_names_the_epoch(fake: FakeKubectl) -> None:
    no = run("fence", "orders", stdin="n\n")
    assert no.exit_code == 1
    assert "Fence writer-1 (producer w1), epoch 7 of shop/orders?" in no.output
    assert "the first of them is next" in no.output
    assert not any("annotate" in call for call in fake.calls)


def test_a_fence_is_an_annotation_whose_result_is_shown(fake: FakeKubectl) -> None:
    fake.shows("orders --output", fenced_topic())
    fake.shows("orders --output", topic(), once=True)
    fake.answers("annotate")
    fake.answers("patch")
    output = run("fence", "orders", "--yes", "--if-epoch", "7").output
    assert output == (
        "done: epoch 7 of shop/orders has ended; writer-2 (producer w2) writes, epoch 8\n"
    )
    (given,) = [call for call in fake.calls if "annotate " in call]
    assert given.startswith(
        "annotate --overwrite exclusivetopics.onewriter.dev orders onewriter.dev/fence=7#5eed "
    )
    assert "--namespace=shop" in given
    (taken,) = [call for call in fake.calls if "patch " in call]
    assert '"op": "test", "path": "/metadata/annotations/onewriter.dev~1fence"' in taken


def test_a_refused_order_reports_why(fake: FakeKubectl) -> None:
    reported = {
        "type": "Warning",
        "reason": "FencedByOrder",
        "message": "Epoch 7 was to be fenced (annotation #5eed): the holder of the topic is changing",
    }
    fake.has("get events", reported)
    fake.has("get events", once=True)
    fake.answers("annotate")
    fake.fails("patch", "error: it is another order now\n")
    with pytest.raises(Refused, match="the holder of the topic is changing"):
        run("fence", "orders", "-y")


@pytest.mark.parametrize("source", ["annotation", "annotation #0ld"])
def test_a_refusal_of_an_earlier_order_is_no_answer_to_the_same_one_given_again(
    fake: FakeKubectl, source: str
) -> None:
    reported = {
        "type": "Warning",
        "reason": "HandedOverByOrder",
        "message": f"Epoch 7 was to be handed over to w2 ({source}): no producer 'w2' is waiting",
    }
    fake.has("get events", reported)
    fake.answers("annotate")
    fake.answers("patch")
    with pytest.raises(Undecided):
        run("handover", "orders", "--to", "w2", "-y", "--timeout-seconds", "1")


def test_an_epoch_that_ended_otherwise_was_not_fenced(fake: FakeKubectl) -> None:
    fake.shows(
        "orders --output", topic(epoch=8, transitions=[transition(8, "Released", "w2", "p", 1)])
    )
    fake.shows("orders --output", topic(), once=True)
    fake.answers("annotate")
    fake.answers("patch")
    with pytest.raises(Refused, match="epoch 7 had ended otherwise: Released"):
        run("fence", "orders", "-y")


def test_an_order_without_an_operator_stays(fake: FakeKubectl) -> None:
    old = {
        "type": "Warning",
        "reason": "FencedByOrder",
        "message": "Epoch 7 was to be fenced (annotation #0ld): no",
    }
    fake.has("get events", old)
    fake.answers("annotate")
    with pytest.raises(Undecided, match=r"result unknown after 1 s.* stays"):
        run("fence", "orders", "-y", "--timeout-seconds", "1")
    assert not any("patch " in call for call in fake.calls)
    fake.fails("annotate", AWAY)
    with pytest.raises(Undecided):
        run("fence", "orders", "-y")


def test_orders_without_effect_are_not_sent(fake: FakeKubectl) -> None:
    with pytest.raises(Refused, match="the epoch of shop/orders is 7, not 6"):
        run("fence", "orders", "--if-epoch", "6")
    fake.shows("orders --output", topic(waiting=0))
    with pytest.raises(Refused, match="no producer waits"):
        run("handover", "orders")
    fake.shows("orders --output", topic(holder=None))
    with pytest.raises(Refused, match="no writer to fence"):
        run("fence", "orders")
    assert not any("annotate" in call for call in fake.calls)


def test_a_handover_names_the_successor(fake: FakeKubectl) -> None:
    transitions = [transition(8, "Handover", "w2", "writer-2", 0)]
    fake.shows("orders --output", topic(epoch=8, transitions=transitions))
    fake.shows("orders --output", topic(), once=True)
    fake.answers("annotate")
    fake.answers("patch")
    assert "has ended" in run("handover", "orders", "--to", "w2", "-y").output
    assert "onewriter.dev/handover=7#5eed w2" in " ".join(fake.calls)
    fake.shows("orders --output", topic())
    request = run("handover", "orders", stdin="n\n").output
    assert "epoch 7, to the first of those who wait?" in request


# ------------------------------------------------------------ the report

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6.eyJhdWQiOlsib25ld3JpdGVyIl19.c2lnbmF0dXJl"


def test_a_report_has_everything_but_secrets(fake: FakeKubectl, tmp_path: Path) -> None:
    broker = {**POD, "status": {"containerStatuses": [{"name": "broker", "restartCount": 1}]}}
    fake.answers("version", "serverVersion: {gitVersion: v1}\n")
    fake.has("get services --selector", service())
    fake.has(
        "get (deployments|statefulsets|services|configmaps|poddis|networkp|persistent|endp|lea|bucket|onewriters)"
    )
    fake.has("get services .*all-namespaces", service())
    fake.has("get pods", broker)
    fake.answers("logs", f"connected to redis://me:hunter2@store with {JWT}\n")
    fake.fails("port-forward", FORBIDDEN)
    path = tmp_path / "report.tar.gz"
    result = run("report", "-f", str(path))
    assert "without pods/onewriter-broker-0/http: cannot connect to pod" in result.output
    assert result.output.endswith(f"{path} (1 parts could not be had: errors.txt)\n")
    with tarfile.open(path) as archive:
        texts = {}
        for each in archive.getmembers():
            file = archive.extractfile(each)
            assert file is not None
            texts[each.name.partition("/")[2]] = file.read().decode()
    assert {
        "version.txt",
        "kubernetes-version.yaml",
        "topics/exclusivetopics.onewriter.dev.yaml",
        "topics/events-ProducerClaim.yaml",
        "installation/pods.yaml",
        "installation/bucketanchors.onewriter.dev.yaml",
        "pods/onewriter-broker-0/broker.log",
        "pods/onewriter-broker-0/broker.previous.log",
        "errors.txt",
    } <= set(texts)
    assert "hunter2" not in str(texts)
    assert JWT not in str(texts)
    assert (
        "redis://me:(redacted)@store with (redacted)" in texts["pods/onewriter-broker-0/broker.log"]
    )
    assert not any("secret" in call.lower() for call in fake.calls)


def test_a_report_omits_what_the_caller_may_not_see(fake: FakeKubectl, tmp_path: Path) -> None:
    fake.fails("version|producerclaims|events", AWAY)
    path = tmp_path / "report.tar.gz"
    output = run("report", "-f", str(path)).output
    assert "without installation: which installation is meant?" in output
    with tarfile.open(path) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "topics/exclusivetopics.onewriter.dev.yaml" in names
    assert "topics/producerclaims.onewriter.dev.yaml" not in names
    with pytest.raises(ConfigurationError, match="cannot be written"):
        run("report", "-f", str(tmp_path / "none" / "report.tar.gz"))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "b"}}, {"kind": "Secret", "metadata": {"name": "s"}}),
        ({"metadata": {"managedFields": [1], "name": "x"}}, {"metadata": {"name": "x"}}),
        ({"env": [{"name": "REDIS_PASSWORD", "value": "x"}]}, {"env": [{"name": "REDIS_PASSWORD", "value": "(redacted)"}]}),
        ({"env": [{"name": "TOKEN_REVIEW", "value": "true"}]}, {"env": [{"name": "TOKEN_REVIEW", "value": "true"}]}),
        ({"passwordSecret": {"name": "n", "key": "k"}}, {"passwordSecret": {"name": "n", "key": "k"}}),
        ({"secretName": "n"}, {"secretName": "n"}),
        ({"data": {"c": "url: redis://:p@h"}}, {"data": {"c": "url: redis://:(redacted)@h"}}),
        ({"args": ["--token", JWT]}, {"args": ["--token", "(redacted)"]}),
        ({"replicas": 3, "token": "abc"}, {"replicas": 3, "token": "(redacted)"}),
        ({"tokenSubject": "alice"}, {"tokenSubject": "alice"}),
    ],
)  # fmt: skip
def test_secrets_are_taken_out_of_objects(given: Json, expected: Json) -> None:
    assert redaction.in_document(given) == expected


def test_secrets_are_taken_out_of_texts() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"
    text = f'{key} Authorization: Bearer abc.def "authorization": "Basic eHg=" http://h:80/p@x'
    found = redaction.in_text(text)
    assert "abc" not in found
    assert "eHg=" not in found
    assert "http://h:80/p@x" in found
