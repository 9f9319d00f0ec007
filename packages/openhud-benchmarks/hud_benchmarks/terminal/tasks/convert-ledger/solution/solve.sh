#!/bin/bash
python3 /solution/convert.py
