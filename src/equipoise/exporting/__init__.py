"""Exporting: a trained policy as a folder of data (``policy.onnx``, weights, spec, hashes) that
acts without torch.
"""
