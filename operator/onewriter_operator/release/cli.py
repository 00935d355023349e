"""``onewriter release wait|clean-up|spark-application``: for the chart's hooks and jobs.

The first two are also for people whose hooks are off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import yaml

from onewriter_core.errors import Unavailable
from onewriter_operator.configuration import read
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube, load_configuration
from onewriter_operator.release import application, clean_up, readiness

Command = TypeVar("Command", bound=Callable[..., Any])

CONFIGURATION = Path("/etc/onewriter/configuration.yaml")

configuration_option = click.option(
    "--configuration",
    "path",
    type=click.Path(path_type=Path),
    default=CONFIGURATION,
    show_default=True,
    help="The operator's configuration file.",
)
kubeconfig_option = click.option(
    "--kubeconfig",
    type=click.Path(exists=True, path_type=Path),
    help="The kubeconfig file; default: the pod's ServiceAccount.",
)


def timeout_option(seconds: float) -> Callable[[Command], Command]:
    """How long it may take, by default."""
    return click.option(
        "--timeout-seconds",
        type=float,
        default=seconds,
        show_default=True,
        help="Timeout of the whole command; after it exit code 3.",
    )


@click.group()
def release() -> None:
    """For the hooks of the Helm chart: wait for an installation (a Helm release), or prepare its end.

    It does not release a topic. A leader gives up its topic itself; `onewriter handover` and
    `kubectl onewriter handover` give a topic to a waiter.
    """


@release.command()
@configuration_option
@kubeconfig_option
@timeout_option(300)
def wait(path: Path, kubeconfig: Path | None, timeout_seconds: float) -> None:
    """Wait until operator, store and brokers are ready and topics can be declared."""
    configuration = read(path)

    async def work(kube: Kube) -> None:
        await readiness.wait(kube, configuration, timeout_seconds, click.echo)

    _run(kubeconfig, work)
    click.echo("ready")


@release.command("clean-up")
@configuration_option
@kubeconfig_option
@timeout_option(120)
@click.option(
    "--delete-objects",
    is_flag=True,
    help="Delete all topics and claims first, as their deletion policies say.",
)
@click.option(
    "--deletion-share",
    type=click.FloatRange(0, 1),
    default=clean_up.DELETION_SHARE,
    show_default=True,
    help="Part of the timeout in which the operator may delete them.",
)
@click.option(
    "--helm-release",
    default="",
    help="Act only while Helm uninstalls this release, or the operator's Deployment is annotated "
    f"{clean_up.UNINSTALL}=true.",
)
@click.option(
    "--helm-revision", type=int, default=1, help="The revision as which the release was rendered."
)
@click.option("--confirm", is_flag=True, help="Act without checking whether the installation ends.")
def clean_up_command(
    path: Path,
    kubeconfig: Path | None,
    timeout_seconds: float,
    deletion_share: float,
    helm_release: str,
    helm_revision: int,
    *,
    delete_objects: bool,
    confirm: bool,
) -> None:
    """Stop the operator and remove what would block objects without it."""
    configuration = read(path)

    async def work(kube: Kube) -> None:
        if not confirm:
            await clean_up.check_uninstalling(kube, configuration, helm_release, helm_revision)
        await clean_up.clean_up(
            kube,
            configuration,
            timeout_seconds,
            click.echo,
            deletes_objects=delete_objects,
            deletion_share=deletion_share,
        )

    _run(kubeconfig, work)
    click.echo("done")


@release.command("spark-application")
@click.option(
    "--template",
    "path",
    type=click.Path(exists=True, path_type=Path),
    required=True,
    help="The SparkApplication to create.",
)
@click.option("--namespace", required=True, help="Namespace of the application: the Job's.")
@click.option("--name", required=True, help="Name of this run: the Job's.")
@click.option("--owner", required=True, help="The Job's uid.")
@kubeconfig_option
@timeout_option(21_600)
def spark_application(
    path: Path,
    namespace: str,
    name: str,
    owner: str,
    kubeconfig: Path | None,
    timeout_seconds: float,
) -> None:
    """Run a job of the pipeline with Apache's Spark operator, and wait for its end."""
    template = yaml.safe_load(path.read_text(encoding="utf-8"))
    document = application.application(template, namespace, name, owner)
    found = application.Outcome.RUNNING

    async def work(kube: Kube) -> None:
        nonlocal found
        found = await application.run(kube, document, timeout_seconds, click.echo)

    _run(kubeconfig, work)
    if found is not application.Outcome.SUCCEEDED:
        raise click.ClickException(f"{name} failed: see the log of its driver")
    click.echo("succeeded")


def _run(kubeconfig: Path | None, work: Callable[[Kube], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with Kube(await load_configuration(kubeconfig)) as kube:
            await work(kube)

    try:
        asyncio.run(whole())
    except ApiRefused as refused:
        raise click.ClickException(f"the API server refuses: {refused}") from refused
    except clean_up.NotBeingUninstalled as error:
        raise click.ClickException(str(error)) from error
    except ApiUnreachable as error:
        raise Unavailable(f"the API server cannot be reached: {error}") from error
