#!/bin/bash
python3 /solution/migrate.py
