"""Reads manifest files as the desired state: all topics and claims.

All errors are collected before one is raised. Each names file, document and field. ``topic`` and ``claim`` define the
resources, ``yamltext`` reads text, ``violations`` describes violations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from onewriter_core.api.claim import ProducerClaim
from onewriter_core.api.common import API_VERSION
from onewriter_core.api.topic import ExclusiveTopic
from onewriter_core.api.violations import in_words
from onewriter_core.api.yamltext import VALUES_MAX, UnreadableText, read_json, read_yaml
from onewriter_core.errors import ConfigurationError
from onewriter_core.ids import TopicName

SUFFIXES: Final = (".yaml", ".yml", ".json")
"""The patterns of the files that are read in a directory, without its subdirectories."""

FILES_MAX = 1_000
"""The maximum number of manifest files."""

FILE_BYTES_MAX = 1024 * 1024
"""The maximum bytes of one manifest file."""

DOCUMENTS_MAX = 5_000
"""The maximum number of documents in one manifest file."""


@dataclass(frozen=True, slots=True)
class ManifestLimits:
    """Limits of the manifests that are read together: see the constants."""

    files_max: int = FILES_MAX
    file_bytes_max: int = FILE_BYTES_MAX
    documents_max: int = DOCUMENTS_MAX
    values_max: int = VALUES_MAX


ERRORS_MAX = 50
"""The maximum number of errors that are listed. The others are counted."""

Declared = ExclusiveTopic | ProducerClaim

_KINDS: Final[Mapping[str, type[ExclusiveTopic | ProducerClaim]]] = {
    "ExclusiveTopic": ExclusiveTopic,
    "ProducerClaim": ProducerClaim,
}


@dataclass(frozen=True, slots=True)
class DesiredState:
    """The declared topics and claims, in the order in which they were read.

    ``warnings`` has one sentence for each suspicious declaration that is valid, such as a claim without its topic.
    ``pods`` are the uids of the pods that a claim's podSelector selects, by NAMESPACE/NAME of the claim. ``load`` and
    ``combine`` build this value. They reject duplicate topics and objects.
    """

    topics: tuple[ExclusiveTopic, ...] = ()
    claims: tuple[ProducerClaim, ...] = ()
    warnings: tuple[str, ...] = ()
    pods: Mapping[str, frozenset[str]] = field(default_factory=dict, hash=False)
    _topic_of: dict[TopicName, ExclusiveTopic] = field(init=False, repr=False, compare=False)
    _claims_of: dict[tuple[str, str], tuple[ProducerClaim, ...]] = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        claims_of: dict[tuple[str, str], tuple[ProducerClaim, ...]] = {}
        for claim in self.claims:
            key = (claim.metadata.namespace, claim.spec.topic_ref.name)
            claims_of[key] = (*claims_of.get(key, ()), claim)
        # The only way to set a field of a frozen dataclass. The fields do not change afterwards.
        object.__setattr__(self, "_topic_of", {topic.topic_name: topic for topic in self.topics})
        object.__setattr__(self, "_claims_of", claims_of)

    def topic(self, name: TopicName) -> ExclusiveTopic | None:
        """The declaration of a topic, or of the topic of the partition ``name``."""
        return self._topic_of.get(name.base)

    def without(self, names: Iterable[TopicName]) -> DesiredState:
        """The state without the declarations of some topics."""
        omitted = frozenset(names)
        if not omitted:
            return self
        kept = tuple(topic for topic in self.topics if topic.topic_name not in omitted)
        return replace(self, topics=kept)

    def claims_for(self, topic: ExclusiveTopic) -> tuple[ProducerClaim, ...]:
        """The claims for a declared topic, in its own namespace."""
        return self._claims_of.get((topic.metadata.namespace, topic.metadata.name), ())

    def pods_of(self, claim: ProducerClaim) -> frozenset[str]:
        """The uids of the pods that a claim's podSelector is known to select."""
        return self.pods.get(str(claim.metadata), frozenset())


@dataclass(frozen=True, slots=True)
class Located:
    """A resource and a description of the place where it was read."""

    resource: Declared
    where: str


def load(*paths: Path, limits: ManifestLimits = ManifestLimits()) -> DesiredState:
    """Read manifest files and directories as one desired state.

    Raises ConfigurationError with one line per error. A missing path and a directory without
    manifests are errors. Blocks on the file system: call it before the event loop runs, or
    in a thread.
    """
    errors: list[str] = []
    resources: list[Located] = []
    for file in _files(paths, errors, limits.files_max):
        text = _text(file, errors, limits.file_bytes_max)
        if text is not None:
            is_json = file.suffix == ".json"
            resources += parse(text, str(file), errors, is_json=is_json, limits=limits)
    return combine(resources, errors)


def parse(
    text: str,
    source: str,
    errors: list[str],
    *,
    is_json: bool = False,
    limits: ManifestLimits = ManifestLimits(),
) -> list[Located]:
    """Read the documents of one text. Adds violations to ``errors`` and raises nothing."""
    resources: list[Located] = []
    number = 0
    try:
        for number, document in enumerate(
            _documents(text, limits.values_max, is_json=is_json), start=1
        ):
            if number > limits.documents_max:
                errors.append(f"{source}: more than {limits.documents_max} documents")
                break
            if document is not None:
                found = read_resource(document, f"{source}, document {number}", errors)
                resources += [] if found is None else [found]
    except UnreadableText as error:
        errors.append(f"{source}, document {number + 1}, {error}")
    return resources


def combine(
    resources: Iterable[Located],
    errors: Iterable[str] = (),
    pods: Mapping[str, frozenset[str]] | None = None,
) -> DesiredState:
    """Combine the resources into one desired state. ``errors`` has the errors found so far.

    Raises ConfigurationError if there are errors, or for a duplicate object or topic.
    """
    found = list(errors)
    objects: dict[tuple[str, str, str], str] = {}
    names: dict[TopicName, str] = {}
    topics: list[ExclusiveTopic] = []
    claims: list[tuple[ProducerClaim, str]] = []
    for located in resources:
        resource, where = located.resource, located.where
        key = (resource.kind, resource.metadata.namespace, resource.metadata.name)
        if key in objects:
            found.append(
                f"{where}: {resource.kind} {resource.metadata} is already in {objects[key]}"
            )
            continue
        objects[key] = where
        if isinstance(resource, ProducerClaim):
            claims.append((resource, where))
            continue
        name = resource.topic_name
        if name in names:
            found.append(f"{where}, spec.topic: {name} is already declared in {names[name]}")
        names.setdefault(name, where)
        topics.append(resource)
    if found:
        raise ConfigurationError(_summary(found))
    return DesiredState(
        tuple(topics), tuple(claim for claim, _ in claims), _warnings(objects, claims), pods or {}
    )


def _warnings(
    objects: Mapping[tuple[str, str, str], str], claims: Iterable[tuple[ProducerClaim, str]]
) -> tuple[str, ...]:
    return tuple(
        f"{where}, spec.topicRef.name: no ExclusiveTopic {claim.spec.topic_ref.name} is declared in "
        f"namespace {claim.metadata.namespace}; the claim {claim.metadata.name} waits for it"
        for claim, where in claims
        if ("ExclusiveTopic", claim.metadata.namespace, claim.spec.topic_ref.name) not in objects
    )


def _summary(errors: list[str]) -> str:
    """One line per error, without line breaks and printable on any terminal."""
    lines = [_one_line(error) for error in errors[:ERRORS_MAX]]
    if len(errors) > ERRORS_MAX:
        lines.append(f"and {len(errors) - ERRORS_MAX} more errors")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _files(paths: Iterable[Path], errors: list[str], files_max: int) -> list[Path]:
    """The manifest files without duplicates."""
    files: dict[Path, Path] = {}
    for path in paths:
        try:
            is_folder = path.is_dir()
            inside = sorted(filter(_is_manifest, path.iterdir())) if is_folder else [path]
            if not inside:
                errors.append(f"{path}: no {', '.join(SUFFIXES)} file in this directory")
            for file in inside:
                files.setdefault(file.resolve(), file)
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a cycle of links
            errors.append(f"{path}: {_reason(error)}")
    if len(files) > files_max:
        errors.append(f"{len(files)} manifest files: at most {files_max} are read")
    return list(files.values())[:files_max]


def _is_manifest(path: Path) -> bool:
    return path.suffix in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _text(file: Path, errors: list[str], bytes_max: int) -> str | None:
    try:
        with file.open("rb") as stream:
            data = stream.read(bytes_max + 1)
        if len(data) <= bytes_max:
            return data.decode("utf-8-sig")
        errors.append(f"{file}: larger than {bytes_max} bytes")
    except UnicodeDecodeError as error:
        errors.append(f"{file}: not UTF-8 text (byte {error.start + 1})")
    except (OSError, ValueError) as error:
        errors.append(f"{file}: {_reason(error)}")
    return None


def _reason(error: OSError | ValueError | RuntimeError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _documents(text: str, values_max: int, *, is_json: bool) -> Iterator[object]:
    if is_json:
        yield read_json(text)
    else:
        yield from read_yaml(text, values_max=values_max)


def read_resource(document: object, where: str, errors: list[str]) -> Located | None:
    """The resource that a document declares; None if it is invalid, with the reasons in ``errors``."""
    if not isinstance(document, Mapping):
        errors.append(f"{where}: must be a mapping with apiVersion, kind, metadata and spec")
        return None
    version, kind = document.get("apiVersion"), document.get("kind")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if version != API_VERSION:
        errors.append(f"{where}, apiVersion: {_must_be((API_VERSION,), version)}")
    if model is None:
        errors.append(f"{where}, kind: {_must_be(tuple(_KINDS), kind)}")
    if model is None or version != API_VERSION:
        return None
    try:
        return Located(model.from_document(document), where)
    except ValidationError as error:
        errors += [f"{where}{violation}" for violation in in_words(model, error)]
        return None


def _must_be(allowed: tuple[str, ...], value: object) -> str:
    must = f"must be {' or '.join(allowed)}"
    return f"{must}, not {str(value)[:100]}" if value is not None else must
