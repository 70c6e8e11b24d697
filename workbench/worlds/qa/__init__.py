"""Questions and answers: how an answer is held against the known ones, and where questions come from."""
