"""Engine against trainer on the same ids: how far apart, and why.

    claims     what the engine said of its own tokens: logprobs, whole distributions, the journal's ids
    forward    what the trainer's weights make of the same ids, as they are or under a hypothesis
    figures    gap, divergence over the whole vocabulary, raw ratios
    causes     which hypotheses close the gap: the waterfall and the verdict
    control    nothing is learned, so nothing may move; something is planted, so something must
    report     all of it as one value

A gap between two logprobs says nothing about its cause, and a mean over sampled tokens says little about a
distribution. So the trainer's numbers are computed again as they would be if this or that had gone wrong, and what
closes the gap is the cause.
"""
