#!/bin/sh
# Compiles the program and compares its output with the expected one.
set -e
cc -std=c11 -O2 -o ledger ledger.c
./ledger < tests/first.in | diff - tests/first.out
./ledger < tests/second.in | diff - tests/second.out
echo passed
