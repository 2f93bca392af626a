"""Trained models as programs that run without longspan: made by torch.export, stored for torch or for ONNX."""
