"""Half an hour on one GPU: what runs, what is fast, what is learned. `experiments/gpu_check.sh` starts it.

    plan        the parts, in their order, each with a limit and the question that it answers
    agreement   do engine, learner, packing and sync say on the device what a plain forward pass says; determinism
    speed       decoding, updates, the loss over a large vocabulary, the lint's share of a step
    states      a sync, a checkpoint, a run that is resumed
    learning    the shipped policies and one pretrained model
    carry       what travels to a machine without a network: wheels, a large file in two halves

Nothing here is measured on a GPU yet; on a CPU with `--shapes tiny` the same code runs, to see that it does.
"""
