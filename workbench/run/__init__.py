"""The run folder: one writer, columnar files, the store over them, a follower of running runs, the difference of two.

Opens where torch is missing.
"""
