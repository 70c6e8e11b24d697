"""Before a run: is the tokenizer sound, and a small stand-in for a policy that is too large to be tried itself.

installed    a package that is missing or cannot be imported is named, with the command that mends it
round_trip   texts come back from their ids, or the policy is refused as it is loaded
stand_in     the same architecture, small: what the lint asks about gradients and settings where the policy is large or
             on a GPU
shrink       the configuration of an architecture, made small
own_gradient one gradient through the large policy's own weights
"""
