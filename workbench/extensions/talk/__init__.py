"""A conversation with a policy: in a notebook, in a terminal, through an endpoint; and play by hand."""
