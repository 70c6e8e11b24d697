"""Several arms over several seeds, each job one notebook, and the table that they make together.

looks      how small a p-value must be where one looks before the end
verdicts   higher, lower, equal within the margin, undecided: of a family of differences
grid       from lists, ranges and linked settings to the points of a grid
cell       a notebook as the cell of a grid: its parameters, and the result that it ends in
plan       arms, jobs, and what each is made with
reading    a plan is a small TOML file
declared   what was declared before the first run, sealed beside the runs
schedulers what runs the jobs: on_submitit (processes of this machine, SLURM), on_ray
jobs       what holds for every job: one thread, no network, its own GPUs; and one that is lost
gpus       the GPUs of this machine
notebooks  one notebook under papermill, whole or not at all
work       one arm at one seed; what is done stays done
drive      where every job stands, and the driver that has done what is left
facts      what a job found
tuning     a budget for every arm to choose its own settings, before what is judged
controls   an arm against itself, and an effect that was planted
table      from what was found to means, differences, verdicts
starts     warm starts as a factor: drawn at random, or held fixed
power      what a table of this size can find
forecast   jobs, cost, and what could be detected, before anything runs
frames     one data frame of everything
cells      what the notebooks of a run and of a report call
provenance by which code, versions and parameters a notebook's numbers came
numbers    printed numbers beside the same view, made anew
recomputed what can be made anew from a run or a grid
audited    every number of an executed notebook: recomputed, on trust, or different (audited_job, audited_result)
door       `wb.ablate` and `workbench ablate`
"""
