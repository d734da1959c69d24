"""`broker image`."""

from pathlib import Path
from typing import Annotated

import httpx
import typer

from broker.cli.output import write_line
from broker.cli.output_file import open_output
from broker.cli.remote import UrlOption, find_url
from broker.client.address import LOOPBACK, account_of, is_local_name
from broker.client.connection_pool import parse_base_url
from broker.image_urls import image_path
from broker.images.options import parse_options

_WAIT_S = 60.0  # the first image waits until a replica has started


def image(
    source: Annotated[str, typer.Argument(help="URL of the source image.")],
    options: Annotated[str, typer.Option(help="Image options, such as w=400,h=300,fit=face,f=webp.")] = "-",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; - is standard output.")
    ] = None,
    account: Annotated[str | None, typer.Option(help="Account; by default the first label of --url.")] = None,
    url: UrlOption = None,
) -> None:
    """Resize, crop or convert an image. Without -o, print its URL."""
    base_url = parse_base_url(find_url(url))
    target = base_url.join(image_path(account or account_of(base_url.host), options, source))
    if output is None:
        if "preset=" not in options:  # whose options the server knows
            parse_options(options)  # nobody else reads them before an overlay shows nothing
        write_line(str(target))
        return
    sent = target.copy_with(host=LOOPBACK) if is_local_name(target.host) else target
    reply = httpx.get(sent, headers={"host": target.netloc.decode()}, timeout=_WAIT_S)
    if reply.status_code != 200:
        raise ValueError(_reason(reply))
    is_text = reply.headers.get("content-type", "").startswith("application/json")  # of `f=json`
    with open_output(output, is_text=is_text) as file:
        file.write(reply.content)


def _reason(reply: httpx.Response) -> str:
    try:
        told = reply.json()
        return f"{told['error']}: {told['error_description']}"
    except (ValueError, KeyError):
        return f"the server returned {reply.status_code}"
