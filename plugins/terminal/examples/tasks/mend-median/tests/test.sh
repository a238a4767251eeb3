#!/bin/bash
# The module under test runs in a process of its own; what it says is judged out here.
if python3 /tests/judge.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
