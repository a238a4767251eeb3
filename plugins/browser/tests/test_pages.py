"""Sessions on real pages: a Chromium, a site on loopback, and a second one that must never be reached."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from rollhook import Plugins, RunConfig, Runtime, Sample
from rollhook_browser.actions import read_action
from rollhook_browser.config import PagesConfig
from rollhook_browser.episode import Episode
from rollhook_browser.pool import World, open_world

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("chromium")]

LOG = """<p id=log></p><script>
    const log = text => { document.getElementById('log').textContent += text }
    </script>"""
PAGES = {
    "/actions": """<title>Actions</title><body style="margin:0">
        <button onclick="log('clicked;')" oncontextmenu="log('menu;'); return false">Push</button>
        <div role=img aria-label=Target tabindex=0 onmouseover="log('hovered;')">here</div>
        <input aria-label=Name oninput="log(this.value + ';')" onkeydown="log(event.key + ';')">
        <select aria-label=Colour multiple onchange="log([...this.selectedOptions].map(o => o.value) + ';')">
        <option value=r>red<option value=b>blue</select>
        <button disabled>Off</button>
        <div style="position:relative"><button>Under</button>
        <div style="position:absolute;inset:0">over</div></div>
        <button onclick="alert('Careful!')">Alert</button>"""
    + LOG,
    "/stale": """<title>Stale</title>
        <button onclick="document.getElementById('b').remove()">Remove</button>
        <button id=b onclick="log('wrong;')">Save</button>"""
    + LOG,
    "/second": "<title>Second</title><button onclick=\"log('second;')\">Other</button>" + LOG,
    "/rows": "<title>Rows</title>" + "".join(f"<button>row {n}</button><br>" for n in range(300)),
    "/tabs": "<title>Tabs</title><a href=/second target=_blank>Pop</a>"
    "<button onclick=\"for (let i = 0; i < 5; i++) window.open('/second')\">Many</button>",
    "/hang": "<title>Hang</title><button onclick='while (true);'>Hang</button>",
    "/halves": "<title>Halves</title><button onclick=\"alert('say \\udc00')\">Say</button><p>\n"
    "<script>document.querySelector('p').textContent = 'a\\ud800b'</script>",
    "/file": "<title>File</title><a href=/data download>Get</a>",
}
Open = Callable[..., Awaitable["Visit"]]


class Visit:
    """An episode, and what it showed last."""

    def __init__(self, episode: Episode, seen: str) -> None:
        self.episode = episode
        self.seen = seen

    async def act(self, action: str) -> str:
        """Take an action; `{name}` in it becomes the id of the element that was last shown by that name."""
        text = await self.episode.act(read_action("Action: " + re.sub(r"{(.*?)}", self._number, action)))
        self.seen = text
        return text

    def _number(self, match: re.Match[str]) -> str:
        found = re.search(rf'\[(\d+)\] \w+ "{match[1]}"', self.seen)
        assert found is not None, self.seen
        return found[1]


def words(text: str) -> int:
    """Tokens of a simple tokenizer: words, marks and line ends."""
    return len(re.findall(r"\w+|[^\w ]", text))


class Server:
    """A site on loopback. hits: every path it was asked for."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.pages: dict[str, str] = dict(PAGES)
        self.moved: dict[str, str] = {}
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.hits.append(request.path)
        if request.headers.get("Upgrade") == "websocket":
            socket = web.WebSocketResponse()
            await socket.prepare(request)
            await socket.send_str("hello")
            return socket
        if request.path in self.moved:
            raise web.HTTPFound(self.moved[request.path])
        headers = {"Access-Control-Allow-Origin": "*"}
        text = self.pages.get(request.path, "<title>Any</title>")
        return web.Response(text=text, content_type="text/html", headers=headers)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def make_server() -> AsyncIterator[Callable[[], Awaitable[Server]]]:
    async with AsyncExitStack() as stack:

        async def make() -> Server:
            server = Server()
            app = web.Application()
            app.router.add_route("*", "/{path:.*}", server.answer)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            return server

        yield make


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def site(make_server: Callable[[], Awaitable[Server]]) -> Server:
    return await make_server()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def other(make_server: Callable[[], Awaitable[Server]]) -> Server:
    """Another origin, allowed only where a test says so."""
    return await make_server()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def opener(site: Server, chromium: str) -> AsyncIterator[Callable[[AsyncExitStack], Open]]:
    """What opens episodes in one browser, which lives as long as the module; the stack closes them."""
    base = {"start_url": site.url, "chromium": chromium}

    def into(stack: AsyncExitStack) -> Open:
        async def make(path: str, **config: Any) -> Visit:
            made = PagesConfig.model_validate({**base, "start_page": path, **config})
            world: World = await stack.enter_async_context(open_world(made, run))
            rollout: Any = SimpleNamespace(sample=Sample(index=0, prompt=""), shared={}, count_tokens=words)
            episode = Episode(world, rollout)
            stack.push_async_callback(episode.close)
            return Visit(episode, (await episode.start())[1])

        return make

    async with Runtime(RunConfig(), plugins=Plugins(entry_points=[])).scoring() as run:
        yield into


@pytest_asyncio.fixture(loop_scope="module")
async def open_episode(opener: Callable[[AsyncExitStack], Open]) -> AsyncIterator[Open]:
    """`await open_episode("/path", **config)`, closed when the test ends."""
    async with AsyncExitStack() as stack:
        yield opener(stack)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared(opener: Callable[[AsyncExitStack], Open]) -> AsyncIterator[Visit]:
    """An episode for tests that load their own page."""
    async with AsyncExitStack() as stack:
        yield await opener(stack)("/actions")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def hasty(opener: Callable[[AsyncExitStack], Open]) -> AsyncIterator[Visit]:
    """One that does not wait long for elements."""
    async with AsyncExitStack() as stack:
        yield await opener(stack)("/actions", action_timeout_s=0.3)


def log_of(text: str) -> str:
    found = re.search(r'paragraph "(.*)"', text)
    return found[1] if found else ""


@pytest.mark.parametrize(
    ("action", "logged"),
    [
        ("click('{Push}')", "clicked;"),
        ("click('{Push}', button='right')", "menu;"),
        ("hover('{Target}')", "hovered;"),
        ("fill('{Name}', 'Ann')", "Ann;"),
        ("press('{Name}', 'Shift+A')", "Shift;A;A;"),
        ("select_option('{Colour}', ['red', 'b'])", "r,b;"),
    ],
)
async def test_an_action_reaches_its_element(shared: Visit, site: Server, action: str, logged: str) -> None:
    await shared.act(f"goto('{site.url}/actions')")

    assert logged == log_of(await shared.act(action))


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("click('{Off}')", "Error: click: Timeout 300ms exceeded. (element is not enabled)"),
        ("click('{Under}')", "intercepts pointer events"),
        ("fill('{Push}', 'x')", "Error: fill: Error: Element is not an <input>"),
        ("press('{Name}', 'NoKey')", 'Error: press: Unknown key: "NoKey"'),
        ("press('{Name}', 'x" + "y" * 60 + "')", "Error: press: key_comb is one key or a combination"),
        ("select_option('{Colour}', 'green')", "Error: select_option: Timeout 300ms exceeded. (did not find"),
        ("click('99999')", "Error: there is no element [99999]; take a number of the last observation"),
        ("tab_focus(4)", "Error: tab_focus: there is no tab 4; the tabs are 0 to 0"),
        ("tab_close()", "Error: tab_close: this is the only tab, and it stays open"),
    ],
)
async def test_an_action_that_cannot_be_taken_says_why(hasty: Visit, action: str, why: str) -> None:
    text = await hasty.act(action)

    assert why in text
    assert re.search(
        r"^Page: ('Actions' )?http:\S+/actions$", text, re.MULTILINE
    )  # a title may come too late


async def test_history_goes_back_and_forward(shared: Visit, site: Server) -> None:
    await shared.act(f"goto('{site.url}/actions')")
    await shared.act("goto('/second')")

    assert "'Actions'" in await shared.act("go_back()")
    assert "'Second'" in await shared.act("go_forward()")
    assert "Error: go_forward: there is no page after this one" in await shared.act("go_forward()")


async def test_a_dialog_is_dismissed_and_told(shared: Visit, site: Server) -> None:
    await shared.act(f"goto('{site.url}/actions')")

    assert (await shared.act("click('{Alert}')")).startswith("The page said (alert, dismissed): 'Careful!'")


async def test_an_id_of_an_element_that_went_away_is_stale(shared: Visit, site: Server) -> None:
    await shared.act(f"goto('{site.url}/stale')")
    before = shared.seen
    await shared.act("click('{Remove}')")
    shared.seen = before

    text = await shared.act("click('{Save}')")
    assert re.match(r"Error: element \[\d+\] is stale: it is not in the last observation\n", text)
    assert log_of(text) == ""


@pytest.mark.parametrize(
    "change",
    [
        "document.getElementById('b').textContent = 'Delete'",
        "document.getElementById('b').setAttribute('role', 'link')",
        "document.getElementById('b').outerHTML = document.getElementById('b').outerHTML",
        "document.getElementById('b').style.display = 'none'",
    ],
)
async def test_an_element_that_changed_behind_the_models_back_is_not_touched(
    shared: Visit, site: Server, change: str
) -> None:
    await shared.act(f"goto('{site.url}/stale')")
    await shared.episode.session.page.evaluate(change)

    text = await shared.act("click('{Save}')")
    assert re.match(r"Error: element \[\d+\] is stale: the page has changed since it was shown\n", text)
    assert log_of(text) == ""


async def test_an_id_of_another_document_is_stale_though_its_place_is_taken(
    shared: Visit, site: Server
) -> None:
    await shared.act(f"goto('{site.url}/stale')")
    old = shared.seen
    await shared.act("goto('/second')")
    shared.seen = old

    text = await shared.act("click('{Remove}')")
    assert "is stale: it is not in the last observation" in text
    assert log_of(text) == ""

    await shared.act("goto('/stale')")
    await shared.episode.session.page.goto(f"{site.url}/second")
    text = await shared.act("click('{Remove}')")
    assert "is stale: the page has changed since it was shown" in text
    assert log_of(text) == ""


async def test_a_long_page_keeps_to_its_budget_and_scrolling_shows_more(open_episode: Open) -> None:
    visit = await open_episode("/rows", max_observation_tokens=150)
    first = visit.seen
    text = await visit.act("scroll(0, 3000)")

    assert first.startswith("Page: 'Rows' ")
    assert [100 < words(seen) <= 150 for seen in (first, text)] == [True, True]
    assert '"row 0"' in first
    assert '"row 0"' not in text
    assert "more lines do not fit here" in text


async def test_tabs_and_notes_leave_half_of_the_budget_to_the_page(open_episode: Open, site: Server) -> None:
    visit = await open_episode("/actions", max_observation_tokens=200)
    long = "word " * 60
    await visit.episode.session.page.evaluate(f"document.title = '{long}'")
    for number in range(8):
        visit.episode.session.note(f"{number} {long}")
    text = await visit.act("scroll(0, 0)")

    assert words(text) <= 200
    assert 'button "Push"' in text
    assert "Page: 'word word" in text


async def test_half_a_character_on_a_page_is_shown_as_a_whole_one(open_episode: Open) -> None:
    visit = await open_episode("/halves")

    assert 'paragraph "a\ufffdb"' in visit.seen
    text = await visit.act("click('{Say}')")
    text.encode()
    assert "The page said (alert, dismissed): " in text


async def test_tabs_are_opened_shown_and_closed(open_episode: Open, site: Server) -> None:
    visit = await open_episode("/tabs", max_tabs=3)

    await visit.act("click('{Pop}')")
    text = await visit.act("noop(500)")
    assert f"Tab 0: {site.url}/tabs\nTab 1 (this one): 'Second' {site.url}/second" in text
    text = await visit.act("new_tab()")
    assert "Tab 2 (this one): about:blank\n(the page shows nothing)" in text
    assert "Error: 3 tabs are open, and no more may be; close one first" in await visit.act("new_tab()")
    text = await visit.act("tab_close()")
    assert "Tab 1 (this one): 'Second'" in text
    text = await visit.act("tab_focus(0)")
    assert "Tab 0 (this one): 'Tabs'" in text
    text = await visit.act("click('{Many}')") + await visit.act("noop(500)")
    assert "Closed: a tab that the page opened; 3 may be open." in text
    assert "Tab 2" in visit.seen
    assert "Tab 3" not in visit.seen


async def test_a_page_that_hangs_is_told_and_ends_no_browser(open_episode: Open) -> None:
    visit = await open_episode("/hang", action_timeout_s=0.5, navigation_timeout_s=1)
    text = await visit.act("click('{Hang}')")
    assert "Error: click" in text
    assert "(the page does not answer)" in text
    await visit.episode.close()

    assert "'Second'" in (await open_episode("/second")).seen


async def test_screenshots_go_to_the_runs_folder(open_episode: Open, tmp_path: Path) -> None:
    visit = await open_episode("/second", screenshots=str(tmp_path))
    await visit.act("noop(1)")

    folder = Path(visit.episode.info["screenshots"])
    files = {path.name: path.read_bytes()[:4] for path in tmp_path.rglob("*.png")}  # noqa: ASYNC240  a test's own
    assert folder.parent == tmp_path
    assert files == {"000.png": b"\x89PNG", "001.png": b"\x89PNG"}


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "chrome://version",
        "{other}/",
        "//x:1/",
    ],
)
async def test_goto_refuses_what_is_not_allowed(shared: Visit, other: Server, url: str) -> None:
    text = await shared.act("goto('" + url.replace("{other}", other.url) + "')")

    assert re.match(r"Error: goto: '.*' is not allowed here; allowed is what is under http://127", text)
    assert other.hits == []


async def test_no_way_out_of_the_allowed_origins(open_episode: Open, site: Server, other: Server) -> None:
    ways = f"""<title>Ways</title><img src={other.url}/img><iframe src={other.url}/frame></iframe>
        <iframe src=/moved-frame></iframe><img src=file:///etc/passwd>
        <link rel=prefetch href={other.url}/prefetch><script src=/moved-script></script>
        <script>
        const ended = [];
        const end = name => [() => ended.push(name + ' passed'), () => ended.push(name + ' failed')];
        fetch('{other.url}/fetch', {{mode: 'no-cors'}}).then(...end('fetch'));
        fetch('/moved-fetch', {{mode: 'no-cors'}}).then(...end('moved fetch'));
        fetch('file:///etc/passwd').then(...end('file'));
        navigator.sendBeacon('{other.url}/beacon', 'x');
        new EventSource('{other.url}/events');
        const socket = new WebSocket('{other.url}/socket'.replace('http', 'ws'));
        socket.onmessage = () => ended.push('socket passed');
        socket.onerror = () => ended.push('socket failed');
        new Worker(URL.createObjectURL(new Blob(["fetch('{other.url}/worker', {{mode: 'no-cors'}})"])));
        open('{other.url}/popup');
        (navigator.serviceWorker?.register('/worker.js') ?? Promise.reject()).then(...end('service worker'));
        navigator.geolocation.getCurrentPosition(...end('location'));
        </script><a href=/moved-link>Leave</a>"""
    site.pages["/ways"] = ways
    site.moved = {f"/moved-{kind}": f"{other.url}/moved" for kind in ("frame", "script", "fetch", "link")}
    visit = await open_episode("/ways", max_tabs=1)
    page = visit.episode.session.tabs[0].page
    await page.wait_for_function("ended.length >= 5", timeout=10_000)
    await visit.act("noop(300)")
    text = await visit.act("click('{Leave}')")

    assert other.hits == []
    assert f"Blocked: '{other.url}/moved' is not allowed here." in text
    assert visit.episode.info["blocked"] >= 10
    assert "root:" not in text


async def test_downloads_are_refused(open_episode: Open) -> None:
    text = await (await open_episode("/file")).act("click('{Get}')")

    assert "Refused: the download of" in text


async def test_what_the_run_allows_is_reached_also_by_redirect_and_socket(
    open_episode: Open, site: Server, make_server: Callable[[], Awaitable[Server]]
) -> None:
    friend = await make_server()
    site.moved["/to-friend"] = f"{friend.url}/second"
    visit = await open_episode("/to-friend", allowed_origins=[friend.url])
    said = await visit.episode.session.page.evaluate(
        f"""new Promise(done => {{
            const socket = new WebSocket('{friend.url}/socket'.replace('http', 'ws'));
            socket.onmessage = message => done(message.data); socket.onerror = () => done('failed');
        }})"""
    )

    assert f"Page: 'Second' {friend.url}/second" in visit.seen
    assert said == "hello"
    assert friend.hits == ["/second", "/socket"]
