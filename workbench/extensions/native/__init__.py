"""Kernels in C++ in place of a Python call for each operation: a pass of tokens through a decoder of the llama and qwen kind, and
attention and layers in training.

kernel      step.cpp, attention.cpp and layers.cpp (all include vectors.h), compiled once for this processor and kept
layout      a Hugging Face model's weights, as the kernel is handed them
fused       the forward pass of the embedded engine by the kernel, tried against the one that it replaces
prompts     a group's first prompt kept once for all of its sequences, by that forward pass
packed      attention of packed segments by the kernel, forward and backward, for the learner
layers      norms, rotations and gated activations by the kernel, for the learner
last_layer  the last decoder layer where a trained token is predicted, and nowhere else
"""
