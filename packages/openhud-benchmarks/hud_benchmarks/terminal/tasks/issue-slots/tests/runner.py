"""Calls functions of the agent's package, in a process of its own: reads calls as JSON, and writes results as JSON."""

import json
import sys

calls = json.load(sys.stdin)
answers, sys.stdout = sys.stdout, sys.stderr
sys.path.insert(0, "/app/clinic")

import slots  # noqa: E402

results = []
for name, arguments in calls:
    try:
        result = getattr(slots, name)(*arguments)
        results.append([str(part) for part in result])
    except ValueError:
        results.append("ValueError")
json.dump(results, answers)
