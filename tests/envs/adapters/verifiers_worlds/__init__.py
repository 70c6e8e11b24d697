"""Small environments written for verifiers, as its users write them: of before (v0) and of today (v1)."""
