"""Programs that talk to a model over HTTP, trained as they are: a gateway that owns the tokens."""
