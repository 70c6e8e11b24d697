"""The weights below adapters in four bits (QLoRA; Dettmers et al. 2023, arXiv 2305.14314): `policy.base_bits = 4`.

linear    a linear layer in four bits, and what it hands out in place of its weights
base      the layers of a policy that are held so
"""
