"""Workers of the fleet on the nodes of a Ray cluster. Ray places and restarts them; it carries no rollouts.

`launcher` starts and ends a `supervisor`, which keeps one `host` a node; each runs `hud.fleet.child_worker`. `placement`
decides, and needs no Ray; `cluster` asks Ray.
"""
