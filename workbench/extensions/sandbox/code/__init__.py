"""Small programs to write: made here or read from files, and judged where they cannot reach.

tasks      the family, and one trajectory           programs   tasks that are made here, without end
problems   a task's problem; files in the forms of HumanEval and MBPP
judging    a program against hidden tests, each in a sandbox of its own
"""
