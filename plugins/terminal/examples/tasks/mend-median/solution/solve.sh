#!/bin/bash
cd /app
python3 - <<'PYTHON'
text = open("stats.py").read()
text = text.replace(
    "    values.sort()\n    return values[len(values) // 2]\n",
    "    ordered = sorted(values)\n    middle = len(ordered) // 2\n"
    "    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2\n",
)
text = text.replace("max(set(values), key=values.count)", "max(values, key=values.count)")
open("stats.py", "w").write(text)
PYTHON
