"""The forms in which programs ask a model: one module each, all of them read into the same values."""
