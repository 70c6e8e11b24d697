"""What an environment shows and says, inspected: `workbench check-env` plays it and compares words
with what happens (E31, E32, parts of E13 and E23).

table.py          which check is asked for by which name
shown_whole.py    what is shown and what the next action meets; examples; texts that are cut (E31)
offered.py        moves that are listed, and numbers of what is left (E31)
bearings.py       directions and edges (E32)
named_cells.py    cells that are named (E32)
map_walls.py      walls of a map, and a part of a reply that is old (E32, E23)
hinted.py         hints: too low, warmer, so many in place, marks of letters (E32)
read_replies.py   how an action is read (E32)
seen_through.py   opponents that see what they should not (E32)
board_lines.py    boards on which a line wins (E13)
"""
