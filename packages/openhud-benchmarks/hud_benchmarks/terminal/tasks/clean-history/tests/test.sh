#!/bin/bash
# Nothing of the agent's is used: no variable, no program of its folders, no configuration.
exec /usr/bin/env -i PATH=/usr/bin:/bin LANG=C.UTF-8 HOME=/tests /usr/bin/python3 -E -s -B /tests/check.py
