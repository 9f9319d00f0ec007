#!/bin/bash
set -e
cp /solution/relay.ini relay.ini
python3 relay.py --check relay.ini
