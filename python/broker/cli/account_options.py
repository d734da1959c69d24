"""How `broker account list` and `broker account show` show what was set for an account."""

from typing import Any

from broker.storage.account_options import AccountOptions


def options_wire(options: AccountOptions) -> dict[str, Any]:
    """The members of the account's JSON."""
    matomo = options.matomo
    return {
        "images": {
            "hosts": [*options.image_hosts],
            "presets": dict(options.image_presets),
            "signed": options.has_signed_images,
        },
        "matomo": None if matomo is None else {"url": matomo.url, "reader": matomo.reader},
    }


def options_lines(options: AccountOptions) -> list[str]:
    """A line for each thing that was set."""
    lines = []
    if options.image_hosts:
        lines.append(f"images from {', '.join(options.image_hosts)}")
    lines += [f"preset {name}: {preset}" for name, preset in options.image_presets.items()]
    if options.has_signed_images:
        lines.append("URLs of images must be signed")
    if options.matomo is not None:
        lines.append(f"Matomo: {options.matomo.url}, read as {options.matomo.reader}")
    return lines
