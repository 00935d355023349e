"""Manifest files: what is read, and how every mistake is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onewriter_core.api import manifests
from onewriter_core.api.manifests import DesiredState, ManifestLimits, load, parse
from onewriter_core.api.yamltext import DEPTH_MAX
from onewriter_core.errors import ConfigurationError
from onewriter_core.ids import TopicName

EXAMPLES = Path(__file__).parents[3] / "examples"

HEAD = "apiVersion: onewriter.dev/v1alpha1\nkind: ExclusiveTopic\n"


def topic(name: str = "orders", spec: str = "{}", namespace: str = "default") -> str:
    return f"{HEAD}metadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}\n"


def claim(name: str, of: str = "orders", namespace: str = "default") -> str:
    return (
        "apiVersion: onewriter.dev/v1alpha1\nkind: ProducerClaim\n"
        f"metadata: {{name: {name}, namespace: {namespace}}}\n"
        f"spec: {{topicRef: {{name: {of}}}, subject: {{tokenSubject: writer}}}}\n"
    )


def written(folder: Path, *documents: str, name: str = "m.yaml") -> Path:
    file = folder / name
    file.write_text("---\n".join(documents), encoding="utf-8")
    return file


def mistakes(*paths: Path, **limits: int) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        load(*paths, limits=ManifestLimits(**limits))
    return str(caught.value).splitlines()


# What is read


def test_the_examples_match_their_comments() -> None:
    state = load(EXAMPLES)
    assert state.warnings == ()
    orders = state.topic(TopicName.parse("persistent://public/default/orders"))
    assert orders is not None
    assert not orders.spec.access.require_claim
    payments = state.topic(TopicName.parse("persistent://public/default/payments-partition-3"))
    assert payments is not None
    assert payments.spec.partitions == 4
    primary, standby = state.claims_for(payments)
    assert primary.spec.priority_in_effect(None) > standby.spec.priority_in_effect(None)
    assert state.claims_for(orders) == ()


def test_a_directory_gives_its_manifests_in_order_and_nothing_else(tmp_path: Path) -> None:
    written(tmp_path, topic("b"), name="2.yml")
    written(tmp_path, topic("a"), name="1.yaml")
    document = yaml.safe_load(topic("c"))
    (tmp_path / "3.json").write_text(json.dumps(document, indent="\t"), encoding="utf-8")
    (tmp_path / "leader.py").write_text("not: [yaml", encoding="utf-8")
    (tmp_path / ".hidden.yaml").write_text("not: [yaml", encoding="utf-8")
    (tmp_path / "sub.yaml").mkdir()
    assert [t.metadata.name for t in load(tmp_path).topics] == ["a", "b", "c"]


def test_empty_documents_count_but_declare_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, topic(), "", "# a comment\n", topic("x", "{partitions: -1}"))
    (mistake,) = mistakes(file)
    assert mistake == f"{file}, document 4, spec.partitions: must be at least 0"


def test_only_partitions_of_the_topic_are_found(tmp_path: Path) -> None:
    state = load(written(tmp_path, topic("orders", "{partitions: 2}")))
    base = TopicName.parse("orders")
    assert state.topic(base.with_partition(1)) is state.topic(base) is state.topics[0]
    assert state.topic(TopicName.parse("other")) is None
    assert DesiredState().topic(base) is None


def test_a_claim_belongs_to_the_topic_of_its_own_namespace(tmp_path: Path) -> None:
    state = load(
        written(
            tmp_path,
            claim("first", namespace="shop"),
            topic(namespace="shop"),
            topic(namespace="bank"),
            claim("second", namespace="shop"),
        )
    )
    shop, bank = state.topics
    assert [c.metadata.name for c in state.claims_for(shop)] == ["first", "second"]
    assert state.claims_for(bank) == ()


def test_a_claim_without_its_topic_is_a_warning(tmp_path: Path) -> None:
    file = written(tmp_path, claim("early", of="later"))
    state = load(file)
    assert len(state.claims) == 1
    (warning,) = state.warnings
    assert warning == (
        f"{file}, document 1, spec.topicRef.name: no ExclusiveTopic later is declared in "
        "namespace default; the claim early waits for it"
    )


def test_aliases_and_merges_of_yaml_are_resolved(tmp_path: Path) -> None:
    shared = "metadata: {name: orders, annotations: {d: &d '1'}, labels: {a: *d}}\nspec:\n"
    text = f"{HEAD}{shared}  retention: &r {{maxEntries: 5}}\n  compaction: {{<<: {{enabled: false}}}}\n"
    (found,) = load(written(tmp_path, text)).topics
    assert found.metadata.labels == {"a": "1"}
    assert found.spec.retention.max_entries == 5


def test_an_unquoted_date_is_the_string_it_is_in_json(tmp_path: Path) -> None:
    text = f"{HEAD}metadata: {{name: orders, annotations: {{day: 2026-01-01}}}}\n"
    (found,) = load(written(tmp_path, text)).topics
    assert found.metadata.annotations == {"day": "2026-01-01"}


# How mistakes are named


def test_a_mistake_names_file_document_and_field(tmp_path: Path) -> None:
    file = written(tmp_path, topic(), topic("slow", "{detection: {pingIntervalSeconds: 0}}"))
    assert mistakes(file) == [
        f"{file}, document 2, spec.detection.pingIntervalSeconds: must be at least 0.1"
    ]


def test_all_mistakes_of_all_files_are_reported_together(tmp_path: Path) -> None:
    first = written(tmp_path, topic("a", "{partitions: x, durability: y}"), name="1.yaml")
    second = written(tmp_path, "a: [1", name="2.yaml")
    third = written(tmp_path, claim("c").replace("tokenSubject", "token"), name="3.yaml")
    named = mistakes(tmp_path)
    assert named[:2] == [
        f"{first}, document 1, spec.partitions: must be a whole number",
        f"{first}, document 1, spec.durability: must be one of None, Local, Replicated or AllReplicas",
    ]
    assert named[2].startswith(f"{second}, document 1, line ")
    assert f"{third}, document 1, spec.subject.token: unknown field" in named[3]
    assert len(named) == 4


@pytest.mark.parametrize(
    ("spec", "mistake"),
    [
        ("{partition: 1}", "spec.partition: unknown field (did you mean partitions?); allowed are topic, "),
        ("{retention: {zzz: 1}}", "spec.retention.zzz: unknown field; allowed are maxAgeSeconds, maxBytes, maxEntries, keepUnacknowledged"),
        ("{leaderService: {name: l, ports: [{prt: 1, port: 1}]}}", "spec.leaderService.ports[0].prt: unknown field (did you mean port?)"),
        ("{access: {modes: [Shared, Sole]}}", "spec.access.modes[1]: must be one of Shared, Exclusive, WaitForExclusive, ExclusiveWithFencing"),
        ("{access: {modes: [Sole]}}", "spec.access.modes[0]: must be one of"),
        ("{access: {modes: []}}", "spec.access.modes: must have 1 or more items"),
        ("{access: {modes: Shared}}", "spec.access.modes: must be a list"),
        ("{access: {modes: [Shared, Shared, Shared, Shared, Shared]}}", "spec.access.modes: must have 4 or fewer items"),
        ("{access: {requireClaim: 1}}", "spec.access.requireClaim: must be true or false"),
        ("{access: yes please}", "spec.access: must be a mapping"),
        ("{handover: {timeoutSeconds: soon}}", "spec.handover.timeoutSeconds: must be a number"),
        ("{handover: {timeoutSeconds: .inf}}", "spec.handover.timeoutSeconds: must be "),
        ("{partitions: 5000}", "spec.partitions: must be at most 1024"),
        ("{topic: 5}", "spec.topic: must be a string"),
        ("{topic: orders}", "spec.topic: must be persistent://TENANT/NAMESPACE/NAME without white space"),
        ("{topic: 'persistent://a/b/c-partition-1'}", "spec.topic: must name a topic, not one of its partitions"),
        (f"{{topic: 'persistent://a/b/{'x' * 600}'}}", "spec.topic: must have 497 or fewer characters"),
        ("{1: 2}", "spec[1]: must be a string: quote this key"),
        ("5", "spec: must be a mapping"),
    ],
)  # fmt: skip
def test_each_mistake_is_reported_in_terms_of_yaml(tmp_path: Path, spec: str, mistake: str) -> None:
    file = written(tmp_path, topic(spec=spec))
    (named,) = mistakes(file)
    assert named.startswith(f"{file}, document 1, {mistake}")


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (HEAD, ", document 1, metadata: is required"),
        (f"{HEAD}metadata: 5\n", ", document 1, metadata: must be a mapping"),
        (f"{HEAD}metadata: {{}}\n", ", document 1, metadata.name: is required"),
        (topic("orders-partition-1"), ", document 1: metadata.name ends like the name of a partition"),
        ("- a\n", ", document 1: must be a mapping with apiVersion, kind, metadata and spec"),
        (topic().replace("v1alpha1", "v2"), ", document 1, apiVersion: must be onewriter.dev/v1alpha1, not onewriter.dev/v2"),
        (topic().replace("kind: ExclusiveTopic", "kind: Topic"), ", document 1, kind: must be ExclusiveTopic or ProducerClaim, not Topic"),
        (topic().replace("kind: ExclusiveTopic", "kind: [a]"), ", document 1, kind: must be ExclusiveTopic or ProducerClaim"),
        ("a: [1\n", ", document 1, line 2, column 1: "),
        ("a: 1\na: 2\n", ", document 1, line 2: the key 'a' stands twice"),
        ("{[1]: 2}\n", ", document 1, line 1: a key must be a string"),
        ("a: !!python/object:os.system x\n", ", document 1, line 1: "),
        ("a: !!int ''\n", ", document 1, line 1: '' does not fit "),
        ("a: !!timestamp 2026-01-01\n", ", document 1, line 1: "),
        ("a: !!binary aGk=\n", ", document 1, line 1: "),
        ("a: !!set {b}\n", ", document 1, line 1: the tag "),
        ("a: 0b_\n", ", document 1, not YAML: "),
        ("a: " + "1" * 5000 + "\n", ", document 1, not YAML: "),
        ("a: \x01\n", ", document 1, character 4: not allowed in YAML"),
        ("a: &a [*a]\n", ", document 1, line 1: "),
        ("a: *b\n", ", document 1, line 1, column 4: "),
        ("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1), f", document 1, line 1: nested deeper than {DEPTH_MAX}"),
    ],
)  # fmt: skip
def test_an_invalid_resource_is_named_in_the_error(tmp_path: Path, text: str, mistake: str) -> None:
    file = written(tmp_path, text)
    named = mistakes(file)
    assert named[0].startswith(f"{file}{mistake}")


def test_the_documents_before_a_broken_one_are_judged_as_well(tmp_path: Path) -> None:
    file = written(tmp_path, topic("a", "{partitions: -1}"), "a: [1")
    first, second = mistakes(file)
    assert first.startswith(f"{file}, document 1, spec.partitions")
    assert second.startswith(f"{file}, document 2, line ")


def test_an_object_declared_twice_names_both_places(tmp_path: Path) -> None:
    first = written(tmp_path, topic(), claim("c"), name="1.yaml")
    second = written(tmp_path, claim("c"), topic(), name="2.yaml")
    assert mistakes(tmp_path) == [
        f"{second}, document 1: ProducerClaim default/c is already in {first}, document 2",
        f"{second}, document 2: ExclusiveTopic default/orders is already in {first}, document 1",
    ]


def test_a_topic_under_two_objects_is_a_mistake_even_when_one_goes_by_default(
    tmp_path: Path,
) -> None:
    topic_name = "persistent://public/default/orders"
    file = written(tmp_path, topic("orders"), topic("x", f"{{topic: '{topic_name}'}}"))
    assert mistakes(file) == [
        f"{file}, document 2, spec.topic: {topic_name} is already declared in {file}, document 1"
    ]


def test_the_same_file_given_twice_is_no_different(tmp_path: Path) -> None:
    file = written(tmp_path, topic())
    assert len(load(file, file).topics) == 1


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"a: \xff")
    missing = tmp_path / "missing.yaml"
    assert mistakes(empty, missing, binary) == [
        f"{empty}: no .yaml, .yml, .json file in this directory",
        f"{missing}: No such file or directory",
        f"{binary}: not UTF-8 text (byte 4)",
    ]


def test_paths_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    circle = tmp_path / "circle.yaml"
    circle.symlink_to(circle)
    impossible = Path("a\0b.yaml")
    # Python 3.13 finds the circle later than 3.11, when it opens the file.
    named = sorted(mistakes(circle, impossible))
    assert [line.partition(": ")[0] for line in named] == [str(circle), "a\\x00b.yaml"]
    assert "embedded null" in named[1]


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ('{"a": 1, "a": 2}', "the key 'a' stands twice"),
        ('{"a": ', "line 1, column 7: "),
        ("[" * 100_000, "nested deeper than"),
        ('{"a": ' + "1" * 5000 + "}", "Exceeds the limit"),
    ],
)
def test_json_is_read_as_strictly(tmp_path: Path, text: str, mistake: str) -> None:
    file = written(tmp_path, text, name="m.json")
    (named,) = mistakes(file)
    assert named.startswith(f"{file}, document 1, {mistake}")


# Bounds


def test_a_few_lines_that_unfold_to_billions_are_refused_unbuilt(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (named,) = mistakes(written(tmp_path, "\n".join(levels)))
    assert named.endswith("values, aliases counted in")


def test_merges_that_unfold_to_billions_are_refused_unbuilt(tmp_path: Path) -> None:
    levels = ["a0: &a0 {x: 1, y: 2}"]
    levels += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 12)]
    (named,) = mistakes(written(tmp_path, "\n".join(levels)))
    assert named.endswith("values, aliases counted in")


def test_a_huge_document_is_refused_and_many_small_ones_are_not(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, *[topic(f"t{n}") for n in range(10)], f"[{'1, ' * 60}]")
    assert mistakes(file, values_max=60) == [f"{file}, document 11, more than 60 values"]


def test_a_file_beyond_the_bound_is_refused_unread(tmp_path: Path) -> None:
    file = written(tmp_path, topic() + "#" * 200)
    assert mistakes(file, file_bytes_max=200) == [f"{file}: larger than 200 bytes"]


def test_documents_and_files_beyond_the_bound_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, topic("a"), topic("b"), topic("c"), "a: [1", name="1.yaml")
    assert mistakes(file, documents_max=2) == [f"{file}: more than 2 documents"]
    written(tmp_path, topic("d"), name="2.yaml")
    assert "2 manifest files: at most 1 are read" in mistakes(
        tmp_path, documents_max=2, files_max=1
    )


def test_mistakes_beyond_the_bound_are_counted(tmp_path: Path) -> None:
    file = written(tmp_path, *[topic(f"t{n}", "{partitions: -1}") for n in range(60)])
    named = mistakes(file)
    assert len(named) == manifests.ERRORS_MAX + 1
    assert named[-1] == "and 10 more errors"


def test_no_mistake_can_forge_a_line_or_move_the_cursor(tmp_path: Path) -> None:
    file = written(tmp_path, '"a\\n\\e[2Jb": 1\nkind: "X\\nY"\napiVersion: v\n')
    assert len(mistakes(file)) == 2
    file = written(tmp_path, topic(spec='{"a\\n\\e[2Jb": 1}'))
    (named,) = mistakes(file)
    assert named.isprintable()


# Whatever the text is, it is read or it is a ConfigurationError


def outcome(text: str, *, is_json: bool) -> None:
    """Anything but a ConfigurationError fails the test, and so does one that says nothing."""
    errors: list[str] = []
    resources = parse(text, "m", errors, is_json=is_json)
    message = "nothing was wrong"
    try:
        manifests.combine(resources, errors)
    except ConfigurationError as error:
        message = str(error)
    assert message
    assert all(line.isprintable() for line in message.split("\n"))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
FIELDS = st.sampled_from([
    "topic", "partitions", "access", "modes", "requireClaim", "promotion", "policy", "detection",
    "pingIntervalSeconds", "retention", "maxBytes", "leaderService", "ports", "port", "name",
    "topicRef", "subject", "tokenSubject", "podSelector", "matchLabels", "mode", "priority", "allow",
    "durability", "handover", "labels", "annotations", "uid", "namespace", "status",
])  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(FIELDS | st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)
DOCUMENTS = st.fixed_dictionaries(
    {
        "apiVersion": st.just("onewriter.dev/v1alpha1") | SCALARS,
        "kind": st.sampled_from(["ExclusiveTopic", "ProducerClaim"]) | SCALARS,
        "metadata": st.fixed_dictionaries({"name": st.just("a") | VALUES}) | VALUES,
        "spec": st.dictionaries(FIELDS, VALUES, max_size=6) | VALUES,
    }
)
SLOW_TO_DRAW = settings(
    max_examples=100, suppress_health_check=[HealthCheck.too_slow], deadline=None
)


@SLOW_TO_DRAW
@given(
    text=st.text(st.characters(), max_size=200)
    | st.text("{}[]&*!<>:-?|#%@`'\" \n\tab01_", max_size=60)
)
@example("!!int 0x_")
@example("!!float .")
@example("!<tag:yaml.org,2002:bool> maybe")
@example("%YAML 9.9\n---\n")
@example("? ? ?")
@example("a: -0b")
@example("=")
@example("<<: 1")
@example("{<<: [1]}")
@example("1:60:99.9")
@example('"\\ud800": 1')
@example("\ufeff---")
def test_no_text_gets_past_configuration_error(text: str) -> None:
    outcome(text, is_json=False)
    outcome(text, is_json=True)


@SLOW_TO_DRAW
@given(document=DOCUMENTS)
def test_no_document_gets_past_configuration_error(document: dict[str, Any]) -> None:
    outcome(json.dumps(document), is_json=True)
    outcome(yaml.safe_dump(document), is_json=False)


@SLOW_TO_DRAW
@given(data=st.data())
def test_no_mutation_of_an_example_gets_past_configuration_error(data: st.DataObject) -> None:
    text = (EXAMPLES / "payments.yaml").read_text(encoding="utf-8")
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        cut = data.draw(st.integers(0, 30))
        text = text[:at] + data.draw(st.text(max_size=3)) + text[at + cut :]
    outcome(text, is_json=False)
