"""`broker reload`."""

from typing import Annotated

import typer

from broker.cli.administration import DataDir
from broker.cli.output import write_line
from broker.settings import Settings
from broker.setup_error import SetupError


def reload(
    data_dir: DataDir = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it is done.", min=1)] = 300,
) -> None:
    """Have the running `broker up` read its settings again, and exchange its processes for some with them.

    If a setting is invalid, nothing changes. Viewers of each gateway reconnect and recover; publishes and
    votes wait for a moment, and none is lost. Some settings take effect at the next start only; the command
    lists them.
    """
    from broker.deployments.reload_record import ReloadState, request_reload

    where = Settings.load(data_dir=data_dir).data_dir
    record = request_reload(where.absolute(), wait, write_line)
    if record.state is not ReloadState.DONE:
        raise SetupError(record.lines[-1])
    for line in record.lines:
        write_line(line)
