"""Other people's environments, played as families of this package. Each imports its package when it is first used."""
