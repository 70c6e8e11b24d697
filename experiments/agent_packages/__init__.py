"""Agents of other people's packages beside our own environment, on the same held-out questions.

    make setup-agents
    PYTHONPATH=. .venv-agents/bin/python -m experiments.agent_packages --json agents.json

The shipped policy of the search preset answers through each, and is then trained through our environment and through the
OpenAI Agents SDK, with the same settings; both are evaluated on the same questions, each through what it was trained through.
"""
