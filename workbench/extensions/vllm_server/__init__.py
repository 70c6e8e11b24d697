"""vLLM as a server of its own: sampling happens there, training here, and weights pass from one to the other.

    process   start, watch and stop a server          client    what it is asked, over HTTP
    keeper    that no server outlives its run         transfer  new weights, and what arrived of them
    ways      ... as files, or by broadcast           core      requests in flight; a server that is gone
    ranks     several learner processes, one server   opening   all of it, from settings
    guard     who may ask

What the worker inside vLLM does with weights is in engines/vllm_transfer; turns and the check after a sync are those of
the engine that has vLLM in this process (engines/vllm_engine).
"""
