"""A pass of tokens through a decoder of the llama and qwen kind in one call, instead of a Python call for each operation.

kernel    step.cpp, compiled once for this processor and kept
layout    a Hugging Face model's weights, as the kernel is handed them
fused     the forward pass of the embedded engine by the kernel, tried against the one that it replaces
"""
