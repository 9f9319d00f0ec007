#!/bin/bash
python3 /solution/resolve.py
