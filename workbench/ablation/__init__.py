"""Several arms over several seeds, each a run of one notebook, and the table that they make together.

    plan       an ablation is a small TOML file: arms, what each sets, what is compared, what is expected
    pool       worker processes of one thread each
    notebooks  one notebook under papermill, whole or not at all
    work       one arm at one seed; what is done stays done
    table      from the run folders to means, differences, verdicts
    report     the same as a picture, a page, Markdown and JSON
"""
