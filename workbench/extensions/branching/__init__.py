"""A stored trajectory played on from one of its turns: what the turn was worth, measured beside what training credited."""
