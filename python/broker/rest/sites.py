"""What is served to browsers beside the API: each name's folder, made by the build, and the headers of its files."""

from collections.abc import Mapping
from pathlib import Path

SITES: dict[str, tuple[Path, Mapping[str, str]]] = {}
"""By the first segment of the path."""
