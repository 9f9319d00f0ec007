"""Sources of runs: logs of programs, clients and observability systems, as `hud import` reads them."""
