"""What browsers get beside the API: by name, the folder that the build made and the headers of its files."""

from collections.abc import Mapping
from pathlib import Path

SITES: dict[str, tuple[Path, Mapping[str, str]]] = {}
"""By the first segment of the path."""
