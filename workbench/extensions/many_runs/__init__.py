"""Many runs at once: a table to sort, filter and group, a search over all their steps, and a comparison of any number."""
