"""`broker up`."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from broker.cli.output import write_line
from broker.deployments.private_paths import require_private_file
from broker.deployments.supervisor import Supervisor
from broker.settings import Settings, shadowed_names
from broker.tracing.opening import require_installed

_WIDTH = 11


def up(
    http_port: Annotated[
        int | None, typer.Option(help="Port of the HTTP API.  [env var: BROKER_HTTP_PORT; default: 8000]")
    ] = None,
    ws_port: Annotated[
        int | None,
        typer.Option(help="Port of the WebSocket gateway.  [env var: BROKER_WS_PORT; default: 8001]"),
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Data directory.  [env var: BROKER_DATA_DIR; default: .broker]")
    ] = None,
    public_host: Annotated[
        str | None,
        typer.Option(help="Host name for clients.  [env var: BROKER_PUBLIC_HOST; default: localhost]"),
    ] = None,
    database_url: Annotated[
        str | None,
        typer.Option(help="PostgreSQL to use; by default an embedded one.  [env var: BROKER_DATABASE_URL]"),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(help="Ray cluster to join; by default a local one.  [env var: BROKER_RAY_ADDRESS]"),
    ] = None,
    owners: Annotated[
        int | None, typer.Option(help="Number of program owners.  [env var: BROKER_OWNERS; default: 1]")
    ] = None,
) -> None:
    """Run the whole product on this machine.

    Prints a line for each component that starts, then one that begins with `ready`. Ctrl-C or SIGTERM drains
    and stops it; a second one cuts connections. SIGHUP, or `broker reload`, replaces gateways, API replicas
    and owners one after the other, which brings in new code and changes of the settings file.
    """

    def load() -> Settings:
        settings = Settings.load(
            http_port=http_port,
            ws_port=ws_port,
            data_dir=data_dir,
            public_host=public_host,
            database_url=database_url,
            ray_address=ray_address,
            owners=owners,
        )
        _check_files(settings)
        return settings

    settings = load()
    for name in shadowed_names():
        report("warning", f"{name}: the environment wins over the settings file")
    asyncio.run(Supervisor(settings, report, load).run())


def _check_files(settings: Settings) -> None:
    """Find mistakes in what the settings name now, and not in a replica. Raises SettingError, SetupError."""
    if settings.settings_file:
        require_private_file(Path(settings.settings_file), "the settings file")
    if settings.matomo_setup:
        # Not above: this process would hold half of the API for as long as it runs.
        from broker.operations.analytics_platform import wanted_of

        wanted_of(settings)
    if settings.images_warm_options:
        from broker.operations.image_warmer import check_options

        check_options(settings)
    if settings.traces_url:
        require_installed()


def report(part: str, detail: str) -> None:
    """One line on standard output; `ready` is for scripts too, so it is not padded."""
    write_line(f"{part} {detail}" if part == "ready" else f"{part:<{_WIDTH}} {detail}")
