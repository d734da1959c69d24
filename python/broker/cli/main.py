"""The console script `broker`.

A failure is one line on standard error and a status other than 0: 1 for a failure, 2 for a wrong command
line, 130 for Ctrl-C. `--debug` shows the trace as well.
"""

import os
import sys
import traceback
from typing import Annotated

import typer
from typer.main import get_command

from broker import DISTRIBUTION, __version__
from broker.cli.lazy import Lazy, lazy_group

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
_LOG_IN = "`broker login` signs in"
PIPE_CLOSED = 141  # 128 + SIGPIPE

COMMANDS = (
    Lazy(
        "up",
        "broker.cli.up:up",
        "Run the whole product on this machine.",
        (
            "BROKER_ADMIN_PASSWORD=correct-horse broker up",
            "broker up --http-port 8100 --ws-port 8101 --data-dir .broker-two",
        ),
    ),
    Lazy(
        "reload",
        "broker.cli.reload:reload",
        "Have `broker up` read its settings again.",
        ("broker reload", "broker reload --data-dir /var/lib/broker"),
    ),
    Lazy(
        "demo",
        "broker.cli.demo:demo",
        "Run a demonstration: a live program with viewers and voters.",
        ("broker demo", "broker demo --seconds 30 --viewers 500 --voters 1000"),
    ),
    Lazy(
        "login",
        "broker.cli.login:login",
        "Log in and save the token for other commands.",
        (
            "broker login --username admin",
            "broker login --url http://arena.localhost:8000",
            "broker login --with-token < token.txt",
        ),
    ),
    Lazy("logout", "broker.cli.login:logout", "Delete a saved log-in.", ("broker logout",)),
    Lazy("whoami", "broker.cli.login:whoami", "Show the current user and log-in.", ("broker whoami --json",)),
    Lazy(
        "program",
        "broker.cli.programs:app",
        "Create, list, show and delete programs.",
        (
            "broker program create final --name 'The final'",
            "broker program list --live",
            "broker program show final --json",
            "broker program delete final --yes",
        ),
    ),
    Lazy(
        "publish",
        "broker.cli.publish:publish",
        "Publish an event.",
        (
            'broker publish final Score#update --metadata \'{"home": 1, "away": 0}\'',
            "broker publish final Lineup#show --metadata @lineup.json",
        ),
    ),
    Lazy(
        "tail",
        "broker.cli.tail:tail",
        "Print a program's events as they are published.",
        ("broker tail final", "broker tail final --history 10 --json"),
    ),
    Lazy(
        "results",
        "broker.cli.results:results",
        "Show the results of a program's polls.",
        ("broker results final --watch",),
    ),
    Lazy(
        "import",
        "broker.cli.transfer:import_",
        "Replace a program's events with those of a file.",
        ("broker import final final.json",),
    ),
    Lazy(
        "export",
        "broker.cli.transfer:export",
        "Write a program's events to a file.",
        ("broker export final final.json", "broker export final --ndjson"),
    ),
    Lazy(
        "image",
        "broker.cli.image:image",
        "Resize, crop or convert an image.",
        ("broker image https://example.com/player.jpg --options w=400,h=300,fit=face -o player.jpg",),
    ),
    Lazy(
        "images",
        "broker.cli.images:app",
        "Purge cached images, or produce them in advance.",
        (
            "broker images warm https://example.com/player.jpg --options w=400,h=300,fit=face",
            "broker images purge --all",
        ),
    ),
    Lazy(
        "token",
        "broker.cli.api_tokens:app",
        "Create, list and revoke your API tokens.",
        (
            "broker token create 'scoreboard of the arena'",
            "broker token list",
            "broker token revoke 0198c2f4-5d1e-7b3a-9c55-3f0a6c1d2e4b",
        ),
    ),
    Lazy(
        "analytics",
        "broker.cli.analytics:app",
        "Set up and verify a project's analytics site.",
        ("broker analytics site create football", "broker analytics site status football --json"),
    ),
    Lazy(
        "account",
        "broker.cli.accounts:app",
        "Create and change accounts in the database.",
        ("broker account add arena", "broker account set arena --origin https://overlay.example.org"),
    ),
    Lazy(
        "user",
        "broker.cli.users:app",
        "Create and change users in the database.",
        ("broker user add ada --role producer", "broker user passwd ada"),
    ),
    Lazy(
        "keys",
        "broker.cli.keys:app",
        "List, rotate and revoke the signing keys of access tokens.",
        ("broker keys list", "broker keys rotate"),
    ),
    Lazy(
        "maintenance",
        "broker.cli.maintenance:app",
        "Refuse changes while reading and following go on.",
        (
            "broker maintenance on --message 'The database moves; back at 22:30.' --retry-after 60",
            "broker maintenance status",
            "broker maintenance off",
        ),
    ),
    Lazy(
        "migrate",
        "broker.cli.migrate:migrate",
        "Update the database schema to this version.",
        ("broker migrate --database-url postgresql://broker@db.example.org/broker",),
    ),
    Lazy(
        "scale",
        "broker.cli.scale:scale",
        "Change the number of program owners while the product runs.",
        ("broker scale", "broker scale owners=4"),
    ),
    Lazy(
        "drain",
        "broker.cli.drain:drain",
        "Empty a node of a Ray cluster before it is taken away.",
        ("broker drain 10.0.0.7", "broker drain --ray-address 10.0.0.5:6379"),
    ),
    Lazy(
        "backup",
        "broker.cli.backup:backup",
        "Write a backup of accounts to a file, while everything runs.",
        ("broker backup everything.backup", "broker backup arena.backup --account arena"),
    ),
    Lazy(
        "restore",
        "broker.cli.backup:restore",
        "Restore accounts from a backup.",
        ("broker restore everything.backup", "broker restore everything.backup --account arena --replace"),
    ),
    Lazy(
        "move",
        "broker.cli.move:move",
        "Copy everything to another PostgreSQL.",
        ("broker move --to postgresql://broker@db.example.org/broker",),
    ),
    Lazy(
        "openapi",
        "broker.cli.documents:openapi",
        "Print the OpenAPI document.",
        ("broker openapi > openapi.json",),
    ),
    Lazy(
        "asyncapi",
        "broker.cli.documents:asyncapi",
        "Print the AsyncAPI document.",
        ("broker asyncapi > asyncapi.json",),
    ),
    Lazy(
        "doctor",
        "broker.cli.doctor:doctor",
        "Check the configuration and the environment.",
        ("broker doctor",),
    ),
    Lazy(
        "top",
        "broker.cli.top:top",
        "Watch the fleet: viewers, rates and lags of each node.",
        ("broker top", "broker top http://10.0.0.7:8050 http://10.0.0.8:8050"),
    ),
)

app = typer.Typer(
    name="broker",
    cls=lazy_group(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"broker {__version__}")
        raise typer.Exit


@app.callback()
def options(
    context: typer.Context,
    debug: Annotated[bool, typer.Option(help="Print the stack trace of a failure.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """The broker: ordered, durable events from producers to any number of viewers."""
    del version  # its callback has done the work
    context.obj["debug"] = debug


def main() -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line; returns its exit status and raises nothing."""
    state = {"debug": False}
    try:
        status = get_command(app).main(arguments, prog_name="broker", standalone_mode=False, obj=state)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has gone; what is left in the buffer must not fail at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except typer.TyperException as error:
        typer.echo(_usage_line(error), err=True)
        return error.exit_code
    except Exception as error:
        if state["debug"]:
            traceback.print_exc()
        typer.echo(f"error: {one_line(error)}", err=True)
        return 1


def _usage_line(error: typer.TyperException) -> str:
    """What is wrong with the command line; a command without its arguments shows its help instead."""
    text = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or "\n" in text:
        return text
    return f"error: {text.rstrip('.')}; see `{context.command_path} --help`"


def one_line(error: BaseException) -> str:
    """The one-line message of a failure."""
    if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("broker"):
        remedy = f"pip install '{DISTRIBUTION}[server]'"
        return f"{error.name} is not installed; this command needs the server: {remedy}"
    text = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror}"
    is_ours = type(error).__module__.startswith("broker.") or isinstance(error, ValueError)
    if is_ours and text:
        return f"{text}; {_LOG_IN}" if getattr(error, "name", None) == "invalid_token" else text
    return f"{type(error).__name__}: {text}; `broker --debug …` shows where"
