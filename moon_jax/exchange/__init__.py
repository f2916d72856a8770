"""Models of other programs: PyTorch and ONNX files, and torchvision's weights."""
