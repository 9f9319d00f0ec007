"""A Ray cluster places and restarts workers of the fleet, trainers and vLLM servers; it carries no rollouts.

`launcher` starts and ends a `supervisor`, which keeps one `host` a node; each runs `hud.fleet.child_worker`. `placement`
decides, and needs no Ray. `keeping` starts and ends what else is kept: a `keeper` runs one command, and `members` keeps
several, the vLLM servers of a model. `cluster` asks Ray.
"""
