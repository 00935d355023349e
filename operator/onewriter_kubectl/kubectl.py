"""Runs ``kubectl``: the caller's access to the cluster, with all its login methods.

Every failure becomes one of onewriter's errors, so that the exit code shows whether a retry may help.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onewriter_core.errors import (
    ConfigurationError,
    Refused,
    ServerError,
    Unavailable,
    Undecided,
)
from onewriter_core.json_values import Json

REQUEST_SECONDS: Final = 20
"""Time limit of one request of kubectl."""

CALL_SECONDS: Final = 60.0
"""Time limit of one run of kubectl, including a login."""

MESSAGE_LENGTH_MAX: Final = 1_000

_MISSING: Final = re.compile(r"\(NotFound\)")
_FORBIDDEN: Final = re.compile(r"\((Forbidden|Unauthorized)\)|You must be logged in")
_UNKNOWN_KIND: Final = re.compile(r"doesn't have a resource type|no matches for kind")
_REFUSED: Final = re.compile(
    r"\((Invalid|Conflict|AlreadyExists|BadRequest|MethodNotAllowed|Gone)\)|is invalid"
)
_USAGE: Final = re.compile(
    r"context .*does not exist|context was not found|unknown flag|error loading config file"
    r"|no configuration has been provided|Missing or incomplete configuration|invalid configuration"
)


class Missing(Refused):
    """The object does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.TOPIC_NOT_FOUND, message)


class Forbidden(Refused):
    """The caller lacks the right that the API server's message names."""

    def __init__(self, message: str) -> None:
        super().__init__(ServerError.AUTHORIZATION_ERROR, message)


@dataclass(frozen=True, slots=True)
class Kubectl:
    """One cluster. Empty fields have the values of the kubeconfig."""

    kubeconfig: str = ""
    context: str = ""
    impersonated: str = ""
    namespace: str = ""

    def within(self, namespace: str) -> Kubectl:
        """The same cluster, in another namespace."""
        return replace(self, namespace=namespace)

    def command(self, *arguments: str, namespace: str | None = None) -> list[str]:
        """The whole command line; ``namespace`` replaces the caller's, "*" means all."""
        options = {"--kubeconfig": self.kubeconfig, "--context": self.context}
        options["--as"] = self.impersonated
        words = [f"{name}={value}" for name, value in options.items() if value]
        where = self.namespace if namespace is None else namespace
        if where == "*":
            words.append("--all-namespaces")
        elif where:
            words.append(f"--namespace={where}")
        program = os.environ.get("ONEWRITER_KUBECTL") or "kubectl"
        # At the end: before some verbs, kubectl looks for plugins and takes no options.
        return [program, *arguments, *words]

    def text(
        self,
        *arguments: str,
        namespace: str | None = None,
        stdin: str = "",
        changes: bool = False,
    ) -> str:
        """The output of kubectl.

        Raises ConfigurationError, Refused (Missing, Forbidden), Unavailable, and for a command that
        ``changes`` the cluster Undecided if it is unknown whether it did.
        """
        command = self.command(*arguments, namespace=namespace)
        command.append(f"--request-timeout={REQUEST_SECONDS}s")
        try:
            done = subprocess.run(  # noqa: S603 - no shell, and our own words
                command,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_SECONDS,
                check=False,
            )
        except FileNotFoundError as error:
            raise ConfigurationError(
                f"{command[0]} is not installed or not on PATH (ONEWRITER_KUBECTL names another)"
            ) from error
        except subprocess.TimeoutExpired as error:
            raise _silence(f"kubectl gave no answer within {CALL_SECONDS:g} s", changes) from error
        if done.returncode == 0:
            return done.stdout
        raise _failure(done.stderr or done.stdout, changes=changes)

    def json(self, *arguments: str, namespace: str | None = None) -> Json:
        """An object, or a list of them. Raises as ``text`` does."""
        found: Json = json.loads(self.text(*arguments, "--output=json", namespace=namespace))
        return found

    def items(self, *arguments: str, namespace: str | None = None) -> list[Json]:
        """The objects of a list. Raises as ``text`` does."""
        found: list[Json] = self.json("get", *arguments, namespace=namespace).get("items") or []
        return found


def label_selector(labels: Mapping[str, str]) -> str:
    """The option that selects objects by labels."""
    return "--selector=" + ",".join(f"{name}={value}" for name, value in labels.items())


def _failure(output: str, *, changes: bool) -> Exception:
    lines: Sequence[str] = [
        line
        for line in output.splitlines()
        # The client logs its attempts before the final message.
        if line.strip() and not re.match(r"[EIW]\d{4} ", line)
    ]
    message = " ".join(lines)[:MESSAGE_LENGTH_MAX] or output.strip()[:MESSAGE_LENGTH_MAX]
    message = re.sub(r"^(error|Error from server( \(\w+\))?): ", "", message)
    if _UNKNOWN_KIND.search(output):
        return Missing(f"{message}: is onewriter installed in this cluster?")
    if _MISSING.search(output):
        return Missing(message)
    if _FORBIDDEN.search(output):
        return Forbidden(message)
    if _REFUSED.search(output):
        return Refused(ServerError.NOT_ALLOWED_ERROR, message)
    if _USAGE.search(output):
        return ConfigurationError(message)
    return _silence(message or "kubectl failed without a word", changes)


def _silence(message: str, changes: bool) -> Exception:
    return Undecided(message) if changes else Unavailable(message)
