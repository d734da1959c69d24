"""Finds faces in images: a detector and 68 landmarks, run by ONNX Runtime."""
