"""Rows of data files and the Samples made from them."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from rollhook.data import BadRow, DataKeys, Row, data_digest, make_samples, read_rows
from rollhook.errors import DataError
from rollhook.sample import Sample


def write_lines(path: Path, *lines: str | bytes) -> Path:
    path.write_bytes(b"".join((x if isinstance(x, bytes) else x.encode()) + b"\n" for x in lines))
    return path


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def samples_of(path: Path, keys: DataKeys | None = None, samples_per_prompt: int = 1) -> list[Sample]:
    return list(make_samples(read_rows(path, keys), keys, samples_per_prompt=samples_per_prompt))


def test_a_row_gives_its_samples_the_same_group_and_consecutive_indices(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", '{"prompt": "a", "label": 1}', "", '{"prompt": "b", "label": 2}')

    samples = samples_of(data, samples_per_prompt=2)

    assert [(s.group_index, s.index, s.prompt, s.label) for s in samples] == [
        (0, 0, "a", 1),
        (0, 1, "a", 1),
        (1, 2, "b", 2),
        (1, 3, "b", 2),
    ]
    assert all(s.session_id is None and s.rollout_id is None for s in samples)


def test_every_bad_line_is_named_and_the_good_ones_go_on(tmp_path: Path) -> None:
    data = write_lines(
        tmp_path / "d.jsonl",
        '{"prompt": "a"}',
        "{not json",
        "",
        "[1]",
        b'{"prompt": "\xff"}',
        '{"prompt": "a", "label": NaN}',
        '{"question": "a"}',
        '{"prompt": 3}',
        '{"prompt": []}',
        '{"prompt": [{"content": "no role"}]}',
        '{"prompt": "a", "metadata": [1]}',
        '{"prompt": "a", "tools": "hammer"}',
        "[" * 100_000,
        '{"prompt": "z"}',
    )

    rows = list(read_rows(data))

    assert [row.line for row in rows if isinstance(row, Row)] == [1, 14]
    assert [(row.line, row.key, row.message) for row in rows[1:11] if isinstance(row, BadRow)] == [
        (2, "", "not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (4, "", "not a JSON object but a list"),
        (5, "", "not UTF-8 (byte 12)"),
        (6, "", "not JSON: NaN is not a JSON number"),
        (7, "prompt", "no such key in the row (it has: question)"),
        (8, "prompt", "a prompt is text or a list of messages, not a number"),
        (9, "prompt", "an empty list of messages"),
        (10, "prompt", "message 0 is not an object with a role"),
        (11, "metadata", "must be an object, not a list"),
        (
            12,
            "tools",
            "must be a list, and this text is not JSON: Expecting value: line 1 column 1 (char 0)",
        ),
    ]
    assert isinstance(rows[11], BadRow)
    assert (rows[11].line, rows[11].message[:9]) == (13, "not JSON:")


def test_samples_are_not_made_from_a_bad_row(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "d.jsonl", '{"prompt": "a"}', "oops")

    with pytest.raises(DataError, match=r"^line 2: not JSON"):
        samples_of(data)


def test_keys_name_other_columns(tmp_path: Path) -> None:
    row = {"q": "a", "gold": [1, 2], "info": '{"k": 1}', "fns": [{"type": "function"}]}
    data = write_lines(tmp_path / "d.jsonl", json.dumps(row))
    keys = DataKeys(input="q", label="gold", metadata="info", tools="fns")

    (sample,) = samples_of(data, keys)

    assert (sample.prompt, sample.label) == ("a", [1, 2])
    assert sample.metadata == {"k": 1, "tools": [{"type": "function"}]}


def test_missing_label_metadata_and_tools_are_none_and_empty(tmp_path: Path) -> None:
    (sample,) = samples_of(write_lines(tmp_path / "d.jsonl", '{"prompt": "a", "metadata": null}'))

    assert (sample.label, sample.metadata) == (None, {})


def test_samples_of_one_prompt_share_no_mutable_value(tmp_path: Path) -> None:
    row = {"prompt": [{"role": "user", "content": "a"}], "label": [1], "metadata": {"a": {"b": []}}}
    first, second = samples_of(write_lines(tmp_path / "d.jsonl", json.dumps(row)), samples_per_prompt=2)

    first.metadata["a"]["b"].append(1)
    first.label.append(2)
    assert isinstance(first.prompt, list)
    first.prompt[0]["content"] = "changed"

    assert (second.metadata, second.label) == ({"a": {"b": []}}, [1])
    assert second.prompt == [{"role": "user", "content": "a"}]


def test_a_byte_order_mark_and_unicode_line_separators_are_no_line_ends(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_bytes(b"\xef\xbb\xbf" + '{"prompt": "a\u2028b"}\n{"prompt": "last"}'.encode())

    assert [s.prompt for s in samples_of(data)] == ["a\u2028b", "last"]


def test_parquet_rows_are_plain_and_lose_the_nulls_parquet_filled_in(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    data = write_parquet(
        tmp_path / "d.parquet",
        [
            {
                "prompt": [
                    {"role": "user", "content": "a", "tool_calls": None},
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                ],
                "label": 1.5,
                "metadata": {"rollhook": "x", "other": None},
                "tools": '[{"type": "function"}]',
                "image": b"\x00",
            },
            {"prompt": [{"role": "user", "content": "b", "tool_calls": None}], "label": float("nan")},
            {"prompt": [{"role": "user", "content": "c", "tool_calls": None}], "label": None},
        ],
    )

    first, second, third = samples_of(data)

    assert first.prompt == [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    assert first.metadata == {"rollhook": "x", "other": None, "tools": [{"type": "function"}]}
    assert (second.prompt, second.label, second.metadata) == ([{"role": "user", "content": "b"}], None, {})
    assert (third.index, third.label) == (2, None)


def test_parquet_metadata_may_be_json_text_and_labels_may_be_dates(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "label": datetime.date(2026, 1, 2), "metadata": '{"rollhook": "x"}'}]
    (sample,) = samples_of(write_parquet(tmp_path / "d.parquet", rows))

    assert (sample.label, sample.metadata) == ("2026-01-02", {"rollhook": "x"})


def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    write_lines(tmp_path / "d.parquet", "this is no parquet")
    write_parquet(tmp_path / "q.parquet", [{"question": "a", "answer": "b"}])
    write_lines(tmp_path / "d.csv", "a,b")

    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        samples_of(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match=r"d\.csv: the name must end in \.jsonl or \.parquet"):
        samples_of(tmp_path / "d.csv")
    with pytest.raises(DataError, match=r"d\.parquet: not a readable Parquet file"):
        samples_of(tmp_path / "d.parquet")
    with pytest.raises(DataError, match=r"no column 'prompt' \(columns: question, answer\)"):
        samples_of(tmp_path / "q.parquet")


def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "d.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"needs pyarrow; try: pip install 'rollhook\[parquet\]'"):
        samples_of(tmp_path / "d.parquet")


def test_the_digest_is_of_the_content(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one.jsonl", "a")
    same = write_lines(tmp_path / "same.jsonl", "a")
    other = write_lines(tmp_path / "other.jsonl", "b")

    assert data_digest(one) == data_digest(same)
    assert data_digest(one) != data_digest(other)
