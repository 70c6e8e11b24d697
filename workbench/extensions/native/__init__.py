"""Kernels in C++ in place of a Python call for each operation: a pass of tokens through a decoder of the llama and qwen kind, and
attention in training.

kernel    step.cpp and attention.cpp (both include vectors.h), compiled once for this processor and kept
layout    a Hugging Face model's weights, as the kernel is handed them
fused     the forward pass of the embedded engine by the kernel, tried against the one that it replaces
packed    attention of packed segments by the kernel, forward and backward, for the learner
"""
