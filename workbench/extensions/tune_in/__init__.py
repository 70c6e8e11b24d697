"""Does a policy speak as an environment reads? A few turns under several settings, and what to change."""
