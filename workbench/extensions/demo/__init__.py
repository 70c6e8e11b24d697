"""`workbench demo`: train the embedded agent, and say whether it really learned.

command  the command line
verdict  the runs of all seeds, their rivals, the table and what is concluded from it
"""
