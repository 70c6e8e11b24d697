"""One config, and the loop over steps: session, step, checkpoint, schedule, resume, signals.

The loop knows instruments by a protocol only (`instruments.py`); faces and the lint hand them in.
"""
