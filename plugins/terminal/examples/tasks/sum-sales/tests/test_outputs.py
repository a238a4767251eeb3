import json
from pathlib import Path


def test_totals() -> None:
    totals = json.loads(Path("/app/totals.json").read_text())
    assert totals == {"north": 30.01, "south": 70.07, "east": 40.0, "west": 0.75}
