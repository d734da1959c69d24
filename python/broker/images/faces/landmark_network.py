"""The 68-point landmark network of face-api: four dense blocks and one full layer, over 112×112 pixels.

The structure is that of `src/faceLandmarkNet` and `src/faceFeatureExtractor` in the npm package.
"""

from collections.abc import Mapping

from onnx import ModelProto, TensorProto

from broker.images.faces.graph import Graph
from broker.images.faces.weights import Array

SIDE_PX = 112
POINTS = 68
MEAN_RGB = (122.782, 117.001, 104.298)


def build_landmarks(weights: Mapping[str, Array], origin: str) -> ModelProto:
    """The network: `input` (N, 112, 112, 3) uint8 RGB → `points` (N, 68, 2), x and y as shares."""
    graph = Graph()
    pixels = graph.add("Sub", graph.add("Cast", "input", to=TensorProto.FLOAT), graph.constant(MEAN_RGB))
    planes = graph.add("Transpose", graph.add("Div", pixels, graph.constant(255)), perm=[0, 3, 1, 2])
    row = add_landmarks(graph, planes, weights)
    graph.add("Reshape", row, graph.integers(0, POINTS, 2), result="points")
    return graph.model(
        "face_landmark_68",
        {"input": (TensorProto.UINT8, ["N", SIDE_PX, SIDE_PX, 3])},
        {"points": ["N", POINTS, 2]},
        origin,
    )


def add_landmarks(graph: Graph, planes: str, weights: Mapping[str, Array]) -> str:
    """Add the network behind `planes`, (N, 3, 112, 112) without their mean and divided by 255.

    Returns:
        The points, (N, 136): x before y.
    """
    features = planes
    for index in range(4):
        features = _dense_block(graph, features, weights, f"dense{index}", is_first=index == 0)
    pooled = graph.add("AveragePool", features, kernel_shape=[7, 7], strides=[2, 2])
    flat = graph.add("Flatten", pooled)
    return graph.add("Gemm", flat, graph.constant(weights["fc/weights"]), graph.constant(weights["fc/bias"]))


def _dense_block(
    graph: Graph, source: str, weights: Mapping[str, Array], name: str, *, is_first: bool
) -> str:
    """Four convolutions, of which each is added to the sum of those before it."""
    if is_first:
        filters, bias = weights[f"{name}/conv0/filters"], weights[f"{name}/conv0/bias"]
        total = graph.add("Relu", graph.convolution(source, filters, bias, stride=2))
    else:
        total = graph.add("Relu", _separable(graph, source, weights, f"{name}/conv0", stride=2))
    features = total
    for layer in range(1, 4):
        total = graph.add("Add", total, _separable(graph, features, weights, f"{name}/conv{layer}"))
        features = graph.add("Relu", total)
    return features


def _separable(graph: Graph, source: str, weights: Mapping[str, Array], name: str, stride: int = 1) -> str:
    deep = graph.depthwise(source, weights[f"{name}/depthwise_filter"], stride=stride)
    return graph.convolution(deep, weights[f"{name}/pointwise_filter"], weights[f"{name}/bias"])
