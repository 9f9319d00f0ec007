#!/bin/bash
set -e
python3 overlaps.py < trips.txt > /tmp/before
cp /solution/overlaps.py overlaps.py
python3 overlaps.py < trips.txt | diff - /tmp/before
