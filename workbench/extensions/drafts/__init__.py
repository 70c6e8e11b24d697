"""Exact drafts (`engine.drafts`): the next tokens of a turn are proposed, pass through the model together, and as many of
them stay as would have been sampled anyway.

ngrams    which tokens are proposed: what followed the same few tokens before
runner    a pass with several positions of a sequence
engine    what was sampled at each of them, and which of the next ones that confirms
"""
