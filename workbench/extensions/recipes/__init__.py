"""How the shipped policies are made: the recipes of a checkout, run again or checked."""
