"""Sampling from a large vocabulary on a CPU: what it costs besides the softmaxes.

chosen    the tokens that top-p keeps, and the token that a uniform number means, by choose.cpp where there is a compiler
search    which tokens top-p keeps, and a token drawn from them; bit for bit what `workbench.engines.sampling` gives
"""
