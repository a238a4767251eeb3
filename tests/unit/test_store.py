"""A run's record on disk."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rollhook.errors import ConfigError, DataError
from rollhook.sample import Sample, Status
from rollhook.store import RunRecord, RunStore, read_record, read_rollout, read_rollouts

RECORD = RunRecord({"seed": 1, "data": "abc"}, {"command": ["rollhook", "run"]})


def a_sample(index: int, **fields: Any) -> Sample:
    return Sample(
        index=index,
        group_index=index // 2,
        rollout_id=index,
        prompt=[{"role": "user", "content": "né \u2028 \ud800"}],
        tokens=[1, 2, 3],
        response="x",
        response_length=2,
        loss_mask=[1, 0],
        rollout_log_probs=[-0.1, 0.0],
        reward=0.1 + 0.2,
        status=Status.TRUNCATED,
        weight_versions=["7"],
        metadata={"rollhook_result": {"segment": 0}},
        **fields,
    )


def test_what_was_appended_is_read_back_equal(tmp_path: Path) -> None:
    with RunStore(tmp_path / "run", RECORD) as store:
        store.append(3, [a_sample(3), a_sample(3)])
        store.append(1, [a_sample(1)])

    rollouts = list(read_rollouts(tmp_path / "run"))
    assert [(r.index, r.samples) for r in rollouts] == [(3, [a_sample(3)] * 2), (1, [a_sample(1)])]
    assert [r.index for r in read_rollouts(tmp_path / "run", by_index=True)] == [1, 3]
    assert read_rollout(tmp_path / "run", 1).samples == [a_sample(1)]
    assert read_record(tmp_path / "run") == RECORD


def test_the_same_run_goes_on_and_knows_what_is_done(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store:
        store.append(0, [a_sample(0)])
    with RunStore(tmp_path, RECORD) as store:
        assert store.done == {0}
        store.append(1, [a_sample(1)])
        with pytest.raises(ValueError, match=r"rollout 1 is in .* already"):
            store.append(1, [a_sample(1)])

    assert [r.index for r in read_rollouts(tmp_path)] == [0, 1]


def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD):
        pass

    with (
        pytest.raises(ConfigError, match="holds another run: extra is None there and True here; seed is 1"),
        RunStore(tmp_path, RunRecord({"seed": 2, "data": "abc", "extra": True})),
    ):
        pass
    assert read_record(tmp_path) == RECORD


def test_other_facts_are_the_same_run(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD):
        pass
    with RunStore(tmp_path, RunRecord(RECORD.identity, {"command": ["other"]})):
        pass

    assert read_record(tmp_path) == RECORD


def test_what_the_engine_told_is_pinned(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store:
        store.pin(model="small")
        store.pin(model="small", tokenizer="t")
    with (
        RunStore(tmp_path, RECORD) as store,
        pytest.raises(ConfigError, match="model is 'small' there and 'large' here"),
    ):
        store.pin(model="large")

    assert read_record(tmp_path).pinned == {"model": "small", "tokenizer": "t"}


@pytest.mark.parametrize(
    "torn", [b"{", b'{"index":5,"samples":[{"tok', b'{"index":5,"samples":[]}', b"\0" * 9]
)
def test_a_torn_last_line_is_no_rollout_and_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    with RunStore(tmp_path, RECORD) as store:
        store.append(0, [a_sample(0)])
    with (tmp_path / "rollouts.jsonl").open("ab") as file:
        file.write(torn)

    assert [r.index for r in read_rollouts(tmp_path)] == [0]
    with RunStore(tmp_path, RECORD) as store:
        assert store.done == {0}
        store.append(5, [a_sample(5)])
    assert [r.index for r in read_rollouts(tmp_path)] == [0, 5]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from rollhook.store import RunRecord, RunStore\n"
        "with RunStore(pathlib.Path(sys.argv[1]), RunRecord({'seed': 1, 'data': 'abc'})):\n"
        "    print('open', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"

        with (
            pytest.raises(ConfigError, match=rf"another run \(process {holder.pid}\)"),
            RunStore(tmp_path, RECORD),
        ):
            pass
        assert list(read_rollouts(tmp_path)) == []  # reading needs no lock
        holder.kill()

    with RunStore(tmp_path, RECORD) as store:
        assert store.done == set()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()

    with (
        pytest.raises(ConfigError, match=r"holds thesis.tex and no run.json; name a new or an empty"),
        RunStore(tmp_path, RECORD),
    ):
        pass
    with (
        pytest.raises(ConfigError, match=r"thesis.tex: File exists"),
        RunStore(tmp_path / "thesis.tex", RECORD),
    ):
        pass
    with pytest.raises(DataError, match=r"no run here \(there is no run.json\)"):
        read_record(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": 99}))

    with (
        pytest.raises(DataError, match="has format 99 and this rollhook reads 1"),
        RunStore(tmp_path, RECORD),
    ):
        pass


def test_damage_inside_the_file_is_named_by_line(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store:
        store.append(0, [a_sample(0)])
    with (tmp_path / "rollouts.jsonl").open("ab") as file:
        file.write(b"garbage\n")

    with pytest.raises(DataError, match=r"rollouts.jsonl is damaged at line 2"):
        list(read_rollouts(tmp_path))


def test_a_rollout_that_is_not_there_is_answered_with_what_is(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store:
        with pytest.raises(DataError, match=r"no finished rollout 7 \(0 finished: none yet\)"):
            read_rollout(tmp_path, 7)
        store.append(2, [a_sample(2)])

    with pytest.raises(DataError, match=r"no finished rollout 7 \(1 finished: indices 2 to 2\)"):
        read_rollout(tmp_path, 7)


def test_appends_from_many_threads_stay_whole_lines(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: store.append(i, [a_sample(i)] * 50), range(40)))

    assert sorted(r.index for r in read_rollouts(tmp_path)) == list(range(40))


def test_arrays_and_foreign_objects_in_the_metadata_are_kept_as_plain_data(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    sample = a_sample(0)
    sample.metadata = {"scores": numpy.array([0.5]), "one": numpy.float32(2.0), "path": Path("a/b")}
    with RunStore(tmp_path, RECORD) as store:
        store.append(0, [sample])

    assert read_rollout(tmp_path, 0).samples[0].metadata == {"scores": [0.5], "one": 2.0, "path": "a/b"}


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    with RunStore(tmp_path, RECORD) as store:
        pass

    with pytest.raises(DataError, match="closed, rollout 0 is not recorded"):
        store.append(0, [a_sample(0)])


def test_a_full_disk_stops_the_run_and_loses_nothing_written(tmp_path: Path) -> None:
    script = (
        "import pathlib, resource, signal, sys\n"
        "from rollhook.errors import DataError\n"
        "from rollhook.sample import Sample\n"
        "from rollhook.store import RunRecord, RunStore\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "with RunStore(pathlib.Path(sys.argv[1]), RunRecord({'seed': 1, 'data': 'abc'})) as store:\n"
        "    store.append(0, [Sample(index=0)])\n"
        "    for attempt in (1, 2):\n"
        "        try: store.append(attempt, [Sample(index=attempt, tokens=[1] * 9000)])\n"
        "        except DataError as error: print(error)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )

    assert [line.rpartition("/")[2] for line in done.stdout.splitlines()] == [
        "rollouts.jsonl: cannot record rollout 1: File too large",
        tmp_path.name + ": closed, rollout 2 is not recorded",
    ]
    with RunStore(tmp_path, RECORD) as store:
        assert store.done == {0}
