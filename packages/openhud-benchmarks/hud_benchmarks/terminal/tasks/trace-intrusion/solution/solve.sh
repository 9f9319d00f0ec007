#!/bin/bash
python3 /solution/trace.py
