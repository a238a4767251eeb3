"""`rollhook-search-r1 serve`, as other code's clients and our own see it."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from rollhook_search_r1.cli import main
from rollhook_search_r1.protocol import Passage
from rollhook_search_r1.retrieval import RetrieveService


def post(url: str, body: object) -> tuple[int, Any]:
    """A plain client: no library, no pooling."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def as_clients_show(result: list[dict[str, Any]]) -> str:
    """How Search-R1's own code turns one query's result into text."""
    shown = ""
    for number, item in enumerate(result, start=1):
        title, *text = item["document"]["contents"].split("\n")
        shown += f"Doc {number}(Title: {title}) {chr(10).join(text)}\n"
    return shown


@pytest.fixture(scope="module")
def url(serve: Callable[..., Any]) -> str:
    """The endpoint of a service that was started with --topk 1."""
    started: str = serve("--topk", "1").url
    return started


def test_queries_are_answered_in_both_forms_of_the_result(url: str) -> None:
    queries = ["capital of Ecuador", "a country", "?"]

    status, scored = post(url, {"queries": queries, "topk": 2, "return_scores": True})
    quito, country, nothing = scored["result"]
    assert status == 200
    assert as_clients_show(quito).splitlines()[0] == "Doc 1(Title: Quito) Quito is the capital of Ecuador."
    assert quito[0]["document"] == {
        "id": "2",
        "title": "Quito",
        "text": "Quito is the capital of Ecuador.",
        "contents": "Quito\nQuito is the capital of Ecuador.",
    }
    assert quito[0]["score"] > quito[1]["score"] > 0
    assert country[0]["document"]["title"] == "Peru"
    assert "id" not in country[0]["document"]
    assert nothing == []

    _, bare = post(url, {"queries": queries, "topk": 2})
    assert bare["result"] == [[hit["document"] for hit in hits] for hits in scored["result"]]


@pytest.mark.parametrize("asked", [{}, {"topk": None}, {"topk": 0}])
def test_a_request_without_a_number_gets_the_services_own(url: str, asked: dict[str, Any]) -> None:
    _, answer = post(url, {"queries": ["capital"], **asked})

    assert [len(hits) for hits in answer["result"]] == [1]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"{", "Invalid JSON"),
        ({"topk": 3}, "Field required"),
        ({"queries": "one"}, "valid array"),
        ({"queries": [3]}, "valid string"),
        ({"queries": ["q"], "topk": -1}, "greater than or equal to 0"),
        ({"queries": ["q"], "topk": 10**9}, "less than or equal to 1000"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(url: str, body: object, told: str) -> None:
    status, answer = post(url, body)

    assert status == 422
    assert told in answer["detail"][0]["msg"]


async def test_our_own_client_reads_it(url: str) -> None:
    async with aiohttp.ClientSession() as http:
        client = RetrieveService(http, url, timeout_s=30, retries=0)
        found = await client.search(["capital of Peru", "Ecuador"], 1)

    assert [[hit.passage for hit in hits] for hits in found] == [
        [Passage("Lima", "Lima is the capital of Peru.", "1")],
        [Passage("Quito", "Quito is the capital of Ecuador.", "2")],
    ]
    assert all(hits[0].score for hits in found)


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_when_it_is_told_to(serve: Callable[..., Any], sign: signal.Signals) -> None:
    process = serve().process
    process.send_signal(sign)

    assert process.wait(timeout=30) == 0


@pytest.mark.parametrize(
    ("options", "line", "told"),
    [
        (["--corpus", "nowhere.jsonl"], "", "nowhere.jsonl: no such file"),
        ([], "{", "line 1: not JSON"),
        (["--embedder", "nowhere"], "", "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(
    tmp_path: Path, options: list[str], line: str, told: str
) -> None:
    corpus = tmp_path / "broken.jsonl"
    corpus.write_text(line, encoding="utf-8")
    ended = CliRunner().invoke(
        main, ["serve", "--corpus", str(corpus), "--cache", str(tmp_path), "--port", "0", *options]
    )

    assert ended.exit_code != 0
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr
