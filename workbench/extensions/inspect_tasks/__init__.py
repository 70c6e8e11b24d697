"""Tasks, inspected: what is asked and shown, and which answers are right (E1, E2, E6 to E9, E19, E27, E30, E33 of
`workbench check-env`).

    tasks.py, kin.py, overlap.py, near_copies.py    tasks of their seeds, and splits that hold nothing in common
    shown.py, told.py, hints.py, oracles.py         prompts and replies that can be read and tell no answer
    words.py, by_form.py                            the solver's words, and right answers that are never paid
    lenient.py, wider.py                            wrong answers that are paid
    forms.py, demanded.py                           answers as the prompt writes them
    right_ones.py, known_questions.py               what is called right, worked out by a second way
    answers.py                                      right answers as they were paid, and what is said in their place
    table.py                                        the checks by id, as `inspect_worlds` asks for them
"""
