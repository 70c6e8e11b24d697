"""The whole path once, plainly: from reset to optimizer step, to be read in an evening. Read me first, in this order:

collect.py · chat.py · engine.py · rewards.py · credit.py · loss.py · train.py. All by loops, one trajectory at a time,
each formula beside its source. It shares no arithmetic with what trains: tests, lint and audit compare the two."""
