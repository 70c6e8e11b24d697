"""Questions and answers: how an answer is compared with the known ones, and where questions come from."""
