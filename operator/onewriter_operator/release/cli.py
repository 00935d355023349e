"""``onewriter release wait|clean-up``: for the chart's hooks, and for people whose hooks are off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import click

from onewriter_core.errors import Unavailable
from onewriter_operator.configuration import read
from onewriter_operator.kube import ApiRefused, ApiUnreachable, Kube, load_configuration
from onewriter_operator.release import clean_up, readiness

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
    help="How to reach the API server; default: as the pod's ServiceAccount.",
)


@click.group()
def release() -> None:
    """An installation by the chart as a whole: wait for it, prepare its end."""


@release.command()
@configuration_option
@kubeconfig_option
@click.option("--timeout-seconds", type=float, default=300, show_default=True)
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
@click.option("--timeout-seconds", type=float, default=120, show_default=True)
@click.option(
    "--delete-objects",
    is_flag=True,
    help="Delete all topics and claims first, as their deletion policies say.",
)
def clean_up_command(
    path: Path, kubeconfig: Path | None, timeout_seconds: float, *, delete_objects: bool
) -> None:
    """Stop the operator and take off what would leave objects stuck without it."""
    configuration = read(path)

    async def work(kube: Kube) -> None:
        await clean_up.clean_up(
            kube, configuration, timeout_seconds, click.echo, deletes_objects=delete_objects
        )

    _run(kubeconfig, work)
    click.echo("done")


def _run(kubeconfig: Path | None, work: Callable[[Kube], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with Kube(await load_configuration(kubeconfig)) as kube:
            await work(kube)

    try:
        asyncio.run(whole())
    except ApiRefused as refused:
        raise click.ClickException(f"the API server refuses: {refused}") from refused
    except ApiUnreachable as error:
        raise Unavailable(f"the API server cannot be reached: {error}") from error
