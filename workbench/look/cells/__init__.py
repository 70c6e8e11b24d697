"""What a notebook calls: training with the instruments of a config, live runs, the lint's door, editors, talk.

The `workbench` command and papermill call the same functions.
"""
