#!/bin/bash
# Half the reward for the address, half for the count.
python3 - <<'PYTHON'
import json
from collections import Counter
from pathlib import Path

counts = Counter()
for file in Path("/tests/logs").iterdir():
    for line in file.read_text().splitlines():
        address, *_, status = line.split()
        counts[address] += int(status) >= 500
[(address, count)] = counts.most_common(1)
answer = Path("/app/answer.txt")
given = answer.read_text().split() if answer.exists() else []
reward = 0.5 * (given[:1] == [address]) + 0.5 * (given == [address, str(count)])
Path("/logs/verifier/reward.json").write_text(json.dumps({"reward": reward}))
PYTHON
