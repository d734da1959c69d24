"""Where faces are in a picture: a detector and 68 landmarks, run by ONNX Runtime."""
