#!/bin/bash
set -e
python3 /solution/clean.py < shop.stream > /tmp/clean.stream
git init -q --bare /tmp/clean
git -C /tmp/clean fast-import --quiet < /tmp/clean.stream
git -C /tmp/clean bundle create -q /app/clean.bundle --all
