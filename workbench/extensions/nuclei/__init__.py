"""Top-p over a large vocabulary without sorting it.

search    which tokens top-p keeps, and a token drawn from them; bit for bit what `workbench.engines.sampling` gives
"""
