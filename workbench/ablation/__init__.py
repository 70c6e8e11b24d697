"""Several arms over several seeds, each a run of one notebook, and the table that they make together.

    looks      how small a p-value must be where one looks before the end
    verdicts   higher, lower, equal within the margin, undecided: of a family of differences
    plan       an ablation is a small TOML file: arms, what each sets, what is compared, what is expected
    declared   what was declared before the first run, sealed beside the runs
    pool       worker processes of one thread each
    notebooks  one notebook under papermill, whole or not at all
    work       one arm at one seed; what is done stays done
    table      from the run folders to means, differences, verdicts
    report     the same as a picture, a page, Markdown and JSON
"""
