"""The npm package that `make build` fetches."""

import json
from pathlib import Path

MODELS = Path(__file__).parents[3] / "models"


def test_the_package_is_pinned_by_checksum_and_without_an_address() -> None:
    wanted = json.loads((MODELS / "package.json").read_bytes())["dependencies"]
    lock = json.loads((MODELS / "package-lock.json").read_bytes())["packages"]
    assert wanted == {"@vladmandic/face-api": "1.7.15"} == lock[""]["dependencies"]
    (entry,) = (entry for name, entry in lock.items() if name)
    assert entry["version"] == "1.7.15"
    assert entry["integrity"].startswith("sha512-")
    assert "resolved" not in entry
