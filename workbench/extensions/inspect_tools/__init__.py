"""Tools of an environment, inspected: `workbench check-env` calls each of them and compares what comes with what it says of itself (E28).

described.py   calls of each tool, one argument after the other changed, and the table of what is looked at
bounds.py      what stands exactly at a bound, and what is of the first or last day of a range
questions.py   what the questions of many tasks ask of a tool: lists that are cut, names, defaults
meant.py       sums, orders, pages, and calls that change something
units_told.py  results in another unit than the description says
"""
