"""The SSD detector of face-api: MobileNet v1 with six prediction layers, over 512×512 pixels.

The structure is that of `src/ssdMobilenetv1` in the npm package; it descends from TensorFlow's object
detection API. Each of 5,118 anchors gives a box, as an offset and a scale against the anchor, and a score.
"""

from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, TensorProto

from broker.images.faces.graph import Graph
from broker.images.faces.weights import Array

SIDE_PX = 512
ANCHORS = 5_118
_HALVING_BLOCKS = frozenset({2, 4, 6, 12})  # whose depthwise convolution has a stride of two
_BRANCH_BLOCK = 11  # the first prediction layer looks at its result
_EPSILON = 0.0010000000474974513  # of the batch normalisation, as the network was trained


def build_ssd(weights: Mapping[str, Array], origin: str) -> ModelProto:
    """The detector: `input` (N, 512, 512, 3) uint8 RGB → `boxes` (N, 5118, 4) and `scores` (N, 5118).

    Boxes are left, top, right and bottom as shares of the side, unclipped; scores are 0 to 1.
    """
    graph = Graph()
    planes = graph.add("Transpose", graph.add("Cast", "input", to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    signed = graph.add("Sub", graph.add("Div", planes, graph.constant(127.5)), graph.constant(1))
    low, high, scores = add_ssd(graph, signed, weights)
    corners = graph.add("Concat", low, high, axis=2)
    graph.add("Gather", corners, graph.integers(1, 0, 3, 2), result="boxes", axis=2)
    graph.add("Squeeze", scores, graph.integers(2), result="scores")
    return graph.model(
        "ssd_mobilenet_v1",
        {"input": (TensorProto.UINT8, ["N", SIDE_PX, SIDE_PX, 3])},
        {"boxes": ["N", ANCHORS, 4], "scores": ["N", ANCHORS]},
        origin,
    )


def add_ssd(graph: Graph, planes: str, weights: Mapping[str, Array]) -> tuple[str, str, str]:
    """Add the network behind `planes`, (N, 3, 512, 512) from -1 to 1.

    Returns:
        The top left corners (N, 5118, 2), y before x, the bottom right ones, and the scores (N, 5118, 1).
    """
    maps = _feature_maps(graph, planes, weights)
    boxes, classes = [], []
    for index, features in enumerate(maps):
        layer = f"Prediction/BoxPredictor_{index}"
        boxes.append(_predictions(graph, features, weights, f"{layer}/BoxEncodingPredictor", 4))
        classes.append(_predictions(graph, features, weights, f"{layer}/ClassPredictor", 3))
    low, high = _decode(graph, graph.add("Concat", *boxes, axis=1), weights["Output/extra_dim"][0])
    face = graph.slice(graph.add("Concat", *classes, axis=1), 1, 2, axis=2)  # class 0 is "nothing"
    return low, high, graph.add("Sigmoid", face)


def _feature_maps(graph: Graph, planes: str, weights: Mapping[str, Array]) -> list[str]:
    """What the six prediction layers look at, the finest first."""
    maps = []
    features = _pointwise(graph, planes, weights, "MobilenetV1/Conv2d_0_pointwise", stride=2)
    for block in range(1, 14):
        stride = 2 if block in _HALVING_BLOCKS else 1
        features = _normalised_depthwise(graph, features, weights, f"MobilenetV1/Conv2d_{block}", stride)
        features = _pointwise(graph, features, weights, f"MobilenetV1/Conv2d_{block}_pointwise")
        if block == _BRANCH_BLOCK:
            maps.append(features)
    maps.append(features)
    for layer in range(8):
        is_second = layer % 2 == 1
        name = f"Prediction/Conv2d_{layer}_pointwise"
        features = _pointwise(graph, features, weights, name, stride=2 if is_second else 1)
        if is_second:
            maps.append(features)
    return maps


def _pointwise(graph: Graph, source: str, weights: Mapping[str, Array], name: str, stride: int = 1) -> str:
    bias = weights[f"{name}/convolution_bn_offset"]
    return _relu6(graph, graph.convolution(source, weights[f"{name}/weights"], bias, stride))


def _normalised_depthwise(
    graph: Graph, source: str, weights: Mapping[str, Array], block: str, stride: int
) -> str:
    """A depthwise convolution, its batch normalisation folded into the filters."""
    layer = f"{block}_depthwise"
    variance = weights[f"{layer}/BatchNorm/moving_variance"]
    factor = weights[f"{layer}/BatchNorm/gamma"] / np.sqrt(variance + np.float32(_EPSILON))
    bias = weights[f"{layer}/BatchNorm/beta"] - weights[f"{layer}/BatchNorm/moving_mean"] * factor
    filters = weights[f"{layer}/depthwise_weights"] * factor[:, None]
    return _relu6(graph, graph.depthwise(source, filters, bias, stride))


def _relu6(graph: Graph, source: str) -> str:
    return graph.add("Clip", source, graph.constant(0), graph.constant(6))


def _predictions(graph: Graph, source: str, weights: Mapping[str, Array], name: str, width: int) -> str:
    """One row of `width` numbers for each anchor of a feature map."""
    planes = graph.convolution(source, weights[f"{name}/weights"], weights[f"{name}/biases"])
    pixels = graph.add("Transpose", planes, perm=[0, 2, 3, 1])
    return graph.add("Reshape", pixels, graph.integers(0, -1, width))


def _decode(graph: Graph, encoded: str, anchors: Array) -> tuple[str, str]:
    """The corners of each box from its offset and scale against its anchor (top, left, bottom, right)."""
    sizes = anchors[:, 2:] - anchors[:, :2]
    centers = anchors[:, :2] + sizes / 2
    offset, scale = graph.split(encoded, (2, 2), axis=2)
    growth = graph.add("Exp", graph.add("Div", scale, graph.constant(5)))
    half = graph.add("Mul", growth, graph.constant(sizes[None] / 2))
    shift = graph.add("Mul", offset, graph.constant(sizes[None] / 10))
    center = graph.add("Add", shift, graph.constant(centers[None]))
    return graph.add("Sub", center, half), graph.add("Add", center, half)
