"""One pool of worker processes for other people's code: tools and environments that may hang, crash or flood.

    supervisor  the small process between: forks workers, kills them, and takes all of them with it when it goes
    frames      messages end to end on a socket, none longer than the reader takes; the worker's side: one call after
                the other
    values      settings as JSON that names classes and functions, and back: nothing that crosses can execute anything
    pool        starts workers, listens to them and kills them; worker: the trainer's end of one

Its users are `workbench.tools.executor`, for tools, and `workbench.worlds.workers`, for environments. A worker is a fence against accidents, not against malice:
its code runs with the rights of the user who started the run.
"""
