#!/bin/bash
python3 /solution/decode.py
