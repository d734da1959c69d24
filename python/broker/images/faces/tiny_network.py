"""The tiny detector of face-api: six small convolutions in the manner of YOLO v2, over 416×416 pixels.

The structure is that of `src/tinyFaceDetector` and `src/tinyYolov2` in the npm package. Each of 13×13 cells
gives five boxes: a centre within the cell, a size against an anchor, and a score.
"""

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto

from broker.images.faces.graph import Graph
from broker.images.faces.weights import Array

SIDE_PX = 416
CELLS = SIDE_PX // 32
ANCHORS = (
    (1.603231, 2.094468),
    (6.041143, 7.080126),
    (2.882459, 3.518061),
    (4.266906, 5.178857),
    (9.041765, 10.66308),
)
"""Width and height in cells."""
BOXES = CELLS * CELLS * len(ANCHORS)
_MEAN_RGB = (117.001, 114.697, 97.404)
_LEAK = 0.10000000149011612


def build_tiny(weights: Mapping[str, Array], origin: str) -> ModelProto:
    """The detector: `input` (N, 416, 416, 3) uint8 RGB → `boxes` (N, 845, 4) and `scores` (N, 845).

    Boxes are left, top, right and bottom as shares of the side, unclipped; scores are 0 to 1.
    """
    graph = Graph()
    pixels = graph.add("Sub", graph.add("Cast", "input", to=TensorProto.FLOAT), graph.constant(_MEAN_RGB))
    planes = graph.add("Transpose", graph.add("Div", pixels, graph.constant(255)), perm=[0, 3, 1, 2])
    _decode(graph, _features(graph, planes, weights))
    return graph.model(
        "tiny_face_detector",
        {"input": (TensorProto.UINT8, ["N", SIDE_PX, SIDE_PX, 3])},
        {"boxes": ["N", BOXES, 4], "scores": ["N", BOXES]},
        origin,
    )


def _features(graph: Graph, planes: str, weights: Mapping[str, Array]) -> str:
    """25 numbers for each cell, (N, 25, 13, 13)."""
    first = graph.valid_convolution(planes, weights["conv0/filters"], weights["conv0/bias"])
    features = _leaky(graph, first)
    for layer in range(1, 6):
        # 414 pixels are left of 416: pooling rounds up from here on, as TensorFlow's SAME does.
        pooled = graph.add("MaxPool", features, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        deep = graph.depthwise(pooled, weights[f"conv{layer}/depthwise_filter"])
        flat = graph.convolution(deep, weights[f"conv{layer}/pointwise_filter"], weights[f"conv{layer}/bias"])
        features = _leaky(graph, flat)
    last = graph.add("MaxPool", features, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1])
    return graph.valid_convolution(last, weights["conv8/filters"], weights["conv8/bias"])


def _leaky(graph: Graph, source: str) -> str:
    return graph.add("LeakyRelu", source, alpha=_LEAK)


def _decode(graph: Graph, features: str) -> None:
    """Boxes and scores from the numbers of each cell and anchor."""
    by_cell = graph.add("Transpose", features, perm=[0, 2, 3, 1])
    rows = graph.add("Reshape", by_cell, graph.integers(0, CELLS * CELLS, len(ANCHORS), 5))
    place, growth, score = graph.split(rows, (2, 2, 1), axis=3)
    down, across = np.mgrid[:CELLS, :CELLS]
    cells = np.stack([across, down], -1).reshape(1, CELLS * CELLS, 1, 2)
    inside = graph.add("Add", graph.add("Sigmoid", place), graph.constant(cells))
    center = graph.add("Div", inside, graph.constant(CELLS))
    half_anchors = np.array(ANCHORS)[None, None] / CELLS / 2
    half = graph.add("Mul", graph.add("Exp", growth), graph.constant(half_anchors))
    corners = graph.add("Concat", graph.add("Sub", center, half), graph.add("Add", center, half), axis=3)
    graph.add("Reshape", corners, graph.integers(0, BOXES, 4), result="boxes")
    graph.add("Reshape", graph.add("Sigmoid", score), graph.integers(0, BOXES), result="scores")
