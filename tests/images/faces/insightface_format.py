"""The converted networks in insightface's format: what an operator's directory looks like.

The detector is dressed as SCRFD with key points: nine outputs, for strides of 8, 16 and 32 pixels scores,
distances from an anchor's centre to the box's sides, and five points. All 5,118 boxes go into those of stride
8, and the other two are empty. The landmarks are dressed as `landmark_3d_68`: of 1,103 points the last 68.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from broker.images.faces.graph import Graph
from broker.images.faces.landmark_network import MEAN_RGB, add_landmarks
from broker.images.faces.ssd_network import ANCHORS, SIDE_PX, add_ssd
from broker.images.faces.weights import Array, read_weights

STRIDES = (8, 16, 32)
# Eyes, nose and corners of the mouth, as shares of the box; nobody reads them but to be of the format.
POINTS = ((0.31, 0.40), (0.69, 0.40), (0.5, 0.60), (0.35, 0.78), (0.65, 0.78))
MESH = 1_103


def write_insightface_models(package: Path, target: Path) -> None:
    ssd = build_scrfd(read_weights(package / "model", "ssd_mobilenetv1_model"))
    onnx.save(ssd, str(target / "det_ssd.onnx"))
    landmarks = build_landmark_3d_68(read_weights(package / "model", "face_landmark_68_model"))
    onnx.save(landmarks, str(target / "1k3d68.onnx"))


def build_scrfd(weights: Mapping[str, Array]) -> onnx.ModelProto:
    graph = Graph()
    # insightface gives (pixel - 127.5) / 128, the network takes pixel / 127.5 - 1
    low, high, scores = add_ssd(graph, graph.add("Mul", "input.1", graph.constant(128 / 127.5)), weights)
    first, last = _pixels(graph, low), _pixels(graph, high)
    down, across = np.mgrid[: SIDE_PX // 8, : SIDE_PX // 8]
    places = np.stack([across, down], -1).reshape(-1, 2).repeat(2, axis=0)[:ANCHORS] * 8
    centers = graph.constant(places[None])
    before = _in_strides(graph, graph.add("Sub", centers, first))
    after = _in_strides(graph, graph.add("Sub", last, centers))
    distances = graph.add("Concat", before, after, axis=2)
    size = graph.add("Sub", last, first)
    points = [
        graph.add("Sub", graph.add("Add", first, graph.add("Mul", size, graph.constant(share))), centers)
        for share in POINTS
    ]
    marks = _in_strides(graph, graph.add("Concat", *points, axis=2))
    shapes: dict[str, list[int | str]] = {}
    for kind, source, width in (("scores", scores, 1), ("boxes", distances, 4), ("points", marks, 10)):
        for stride in STRIDES:
            name, rows = f"{kind}_{stride}", (SIDE_PX // stride) ** 2 * 2
            shapes[name] = [1, rows, width]
            _fill(graph, source, rows, name, is_empty=stride != 8)
    return graph.model("scrfd", {"input.1": (TensorProto.FLOAT, [1, 3, SIDE_PX, SIDE_PX])}, shapes, "a test")


def build_landmark_3d_68(weights: Mapping[str, Array]) -> onnx.ModelProto:
    graph = Graph()
    # insightface cuts a square of 1.5 times the face, 192 pixels wide; the network wants the face alone
    rows = graph.slice("data", 32, 160, axis=2)
    middle = graph.slice(rows, 32, 160, axis=3)
    patch = graph.add("Resize", middle, "", graph.constant((1, 1, 0.875, 0.875)), mode="linear")
    shift = (127.5 - np.array(MEAN_RGB)[None, :, None, None]) / 255
    planes = graph.add("Add", graph.add("Mul", patch, graph.constant(128 / 255)), graph.constant(shift))
    shares = graph.add("Reshape", add_landmarks(graph, planes, weights), graph.integers(0, 68, 2))
    places = graph.add("Sub", graph.add("Mul", shares, graph.constant(128 / 96)), graph.constant(64 / 96))
    solid = graph.add("Pad", places, graph.integers(0, MESH - 68, 0, 0, 0, 1))
    graph.add("Flatten", solid, result="fc1")
    inputs = {"data": (TensorProto.FLOAT, ["N", 3, 192, 192])}
    return graph.model("landmark_3d_68", inputs, {"fc1": ["N", MESH * 3]}, "a test")


def _pixels(graph: Graph, corners: str) -> str:
    """Shares of the side, y before x, as pixels, x before y."""
    turned = graph.add("Gather", corners, graph.integers(1, 0), axis=2)
    return graph.add("Mul", turned, graph.constant(SIDE_PX))


def _in_strides(graph: Graph, source: str) -> str:
    return graph.add("Div", source, graph.constant(8))


def _fill(graph: Graph, source: str, rows: int, name: str, *, is_empty: bool) -> None:
    """As many rows as the format has: the source's and zeros behind them, or zeros alone."""
    if not is_empty:
        graph.add("Pad", source, graph.integers(0, 0, 0, 0, rows - ANCHORS, 0), result=name)
        return
    graph.add("Mul", graph.slice(source, 0, rows, axis=1), graph.constant(0), result=name)
