"""Environments as pretrained models need them: prompts said in full, answers read leniently, a system message."""
