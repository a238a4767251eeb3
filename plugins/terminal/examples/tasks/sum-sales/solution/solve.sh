#!/bin/bash
cd /app
python3 - <<'PYTHON'
import csv, json
from collections import defaultdict

totals = defaultdict(float)
with open("sales.csv") as file:
    for row in csv.DictReader(file):
        if row["units"].strip().isdigit():
            totals[row["region"].strip().lower()] += int(row["units"]) * float(row["price"])
with open("totals.json", "w") as file:
    json.dump({region: round(total, 2) for region, total in totals.items()}, file)
PYTHON
