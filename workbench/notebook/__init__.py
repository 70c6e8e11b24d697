"""What a notebook calls: training with the instruments that a config asks for, live runs, the lint's door, editors, talk.

The `workbench` command and papermill call the same functions.
"""
