"""scripts/report.py: what is on the page; and in Chromium: it opens, a hover tells, a switch hides."""

import html
import importlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from charts_data import edit, fill

SCRIPTS = Path(__file__).resolve().parents[1]
SCRIPT = SCRIPTS / "report.py"
sys.path.insert(0, str(SCRIPTS))
pytest.importorskip("plotly", reason="no plotly: scripts/lessons test installs it")
REPORT = importlib.import_module("report")
ROOFLINES = importlib.import_module("rooflines")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two recorded cards; the second is a tenth slower at vector add."""
    made = tmp_path_factory.mktemp("cards")
    other = fill(made / "other", device="NVIDIA Other")
    edit(other / "day49-merged.jsonl", lambda record: {**record, "ms": 1.1 * record["ms"]}, symbol="vectorAdd")
    return [fill(made / "h200"), other]


@pytest.fixture(scope="module")
def page(folders, tmp_path_factory):
    """The page of one card: its path and text."""
    path = tmp_path_factory.mktemp("page") / "one.html"
    path.write_text(REPORT.make_page(folders[:1]), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def both(folders, tmp_path_factory):
    """The page of two cards."""
    path = tmp_path_factory.mktemp("page") / "two.html"
    path.write_text(REPORT.make_page(folders), encoding="utf-8")
    return path


def run(*arguments, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    assert done.returncode == code, done.stderr
    return done


# ---- the page as text ------------------------------------------------------------------------------------------------


def test_it_is_one_file_under_6_megabytes_that_loads_nothing(page, both):
    for path in (page, both):
        text = path.read_text()
        assert len(text.encode()) < 6_000_000
        without_library = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
        assert not re.search(r"<link|<img|<iframe|\ssrc=|@import|url\(|https?://", without_library)
        assert "default-src 'none'" in text and "unsafe-eval" not in text


def test_it_holds_the_tables_of_all_days_and_where_they_come_from(page, folders):
    text = page.read_text()
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    for day, entry in manifest["days"].items():
        assert html.escape((folders[0] / f"day{day}.txt").read_text()) in text
        assert all(html.escape(entry[key]) in text for key in ("revision", "utc", "driver", "uuid", "host_compiler"))
        assert all(html.escape(command) in text for command in entry["commands"])
    assert all(entry["sha256"] in text for entry in manifest["files"].values())


def test_every_dot_of_every_chart_is_there_with_its_figures(page, folders):
    text = page.read_text()
    figures = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.DOTALL)[1])
    cells = set(re.findall(r"<td[^>]*>(.*?)</td>", text))
    said = [text for figure in figures for trace in figure["data"] for text in trace.get("text", [])]
    charts, _ = ROOFLINES.charts_of(folders[0])
    assert len(said) == sum(len(chart.dots) for chart in charts)
    for chart in charts:
        for dot in chart.dots:
            mine = [words for words in said if words.startswith(f"<b>{html.escape(dot.kernel)}</b>")]
            assert any(ROOFLINES.shown(dot.x) in words and f"{dot.percent:.1f} % of its" in words for words in mine)
        losses = isinstance(chart, ROOFLINES.Losses)
        for row in (ROOFLINES.rows_of_losses if losses else ROOFLINES.rows_of)(chart)[1:]:
            assert cells.issuperset(map(html.escape, row))


def test_a_card_that_is_history_says_of_which_revision_and_that_the_code_has_changed(folders, tmp_path):
    folder = tmp_path / "old"
    shutil.copytree(folders[0], folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    revision = next(iter(manifest["days"].values()))["revision"]
    for entry in [*manifest["days"].values(), *manifest["files"].values()]:
        entry.update({"revision": revision} if "revision" in entry else {"code": 64 * "0"})
    manifest["state"] = "history"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    text = REPORT.make_page([folder])
    assert f"comes from: recorded at revision {revision}, the code has changed since.</p>" in text
    assert f"60 MiB L2, recorded at revision {revision}\n" in text


def test_axes_have_the_ticks_of_the_pictures(folders):
    """Walls stand at fractions, so their ticks do; other axes have powers of ten, or 1, 2, 5 where these are few."""
    charts, _ = ROOFLINES.charts_of(folders[0])
    walls = next(chart for chart in charts if chart.name == "day49-walls")
    for panel in walls.panels:
        axis = REPORT.panel_figure(walls, panel)["layout"]["xaxis"]
        assert axis["ticktext"][-1] == "2" if panel is walls.panels[0] else "1" in axis["ticktext"]
        assert {x for x, _ in panel.walls} <= set(axis["tickvals"]) and "1/32" in axis["ticktext"]
    dram = next(chart for chart in charts if chart.name == "day49-dram")
    layout = REPORT.panel_figure(dram, dram.panels[0])["layout"]
    assert layout["xaxis"]["dtick"] == layout["yaxis"]["dtick"] == 1 and "tickvals" not in layout["xaxis"]


def test_sizes_stand_at_powers_of_two_over_a_linear_axis_from_zero(folders):
    charts, _ = ROOFLINES.charts_of(folders[0])
    sizes = next(chart for chart in charts if chart.name == "day44-sizes")
    figure = REPORT.panel_figure(sizes, sizes.panels[0])
    axes = figure["layout"]
    assert axes["xaxis"]["ticktext"] == ["512", "1024", "2048", "4096", "8192"]
    assert axes["yaxis"].get("type") != "log" and axes["yaxis"]["range"][0] == 0
    (note,) = axes["annotations"]
    assert (note["text"], note["y"]) == ("cuBLAS", 100)
    lines = [trace["meta"]["kernel"] for trace in figure["data"] if trace["mode"] == "lines" and "meta" in trace]
    assert lines == [path[0].kernel for path in sizes.panels[0].paths]


def test_every_loss_is_a_bar_from_what_was_left_before_it(folders):
    charts, _ = ROOFLINES.charts_of(folders[0])
    losses = next(chart for chart in charts if chart.name == "day44-losses")
    figure = REPORT.losses_figure(losses)
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert [(bar["y"], bar["base"]) for bar in bars] == [([step.name], [step.before]) for step in losses.steps]
    for bar, step in zip(bars, losses.steps):
        assert bar["base"][0] + bar["x"][0] == pytest.approx(step.after)
        assert f"{step.change} %" in bar["customdata"][0] and step.why in bar["customdata"][0]


def test_plotly_knows_every_key_of_every_figure(folders):
    from plotly.graph_objects import Figure

    for chart in ROOFLINES.charts_of(folders[0])[0]:
        panels = [] if isinstance(chart, ROOFLINES.Losses) else chart.panels
        figures = [REPORT.panel_figure(chart, panel) for panel in panels] or [REPORT.losses_figure(chart)]
        for figure in figures:
            Figure(figure)  # raises ValueError


def test_the_same_folder_gives_the_same_page(page, folders):
    assert REPORT.make_page(folders[:1]) == page.read_text()


def test_what_is_recorded_cannot_break_the_page(folders, tmp_path):
    folder = tmp_path / "odd"
    shutil.copytree(folders[0], folder)
    odd = "</script><script>alert(1)</script>"
    edit(folder / "day49.jsonl", lambda record: {**record, "variant": odd}, symbol="vectorAdd", record="row")
    edit(folder / "day49-merged.jsonl", lambda record: {**record, "variant": odd}, symbol="vectorAdd")
    assert ("<script>alert" in REPORT.make_page([folder])) is False


def test_command(folders, tmp_path):
    assert "two.html: " in run(*folders, "-o", tmp_path / "two.html").stdout
    assert (tmp_path / "two.html").read_text().count("<article") == 2
    assert "no manifest.json" in run(tmp_path, "-o", tmp_path / "x.html", code=1).stderr
    assert not (tmp_path / "x.html").exists()
    assert "one card, or two" in run(*folders, folders[0], "-o", tmp_path / "x.html", code=2).stderr
    shutil.copytree(folders[0], tmp_path / "bad")
    (tmp_path / "bad" / "day49.jsonl").write_text("{\n")
    assert "day49.jsonl:1: not a recorded line" in run(tmp_path / "bad", "-o", tmp_path / "x.html", code=1).stderr


# ---- the page in Chromium --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window, with a log of what its console says."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="no selenium: scripts/lessons test installs it")
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if None in programs:
        pytest.skip("no chromium with its driver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1400,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(programs[1]))
    yield driver
    driver.quit()


def wait_for(ask, seconds=5.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        answer = ask()
        if answer:
            return answer
        time.sleep(0.02)
    return ask()


def opened(browser, path):
    """Open a page, wait for the chart that is in sight, and return how long that took in seconds."""
    browser.get_log("browser")
    start = time.monotonic()
    browser.get(path.as_uri())
    assert wait_for(lambda: browser.find_elements("css selector", ".plot[data-drawn]")), "no chart was drawn"
    return time.monotonic() - start


def plots(browser, chart, card=0):
    """Scroll to a chart of a card and return its plots once they are drawn."""
    found = browser.find_elements("css selector", "article")[card].find_elements(
        "css selector", f'.plot[data-chart="{chart}"]'
    )
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", found[0])
    assert wait_for(lambda: all(plot.get_attribute("data-drawn") for plot in found))
    return found


def points(plot):
    """Return how many dots of a plot can be seen."""
    which = ".points path.point, .points .point > path"  # dots; bars
    ask = f"return [...arguments[0].querySelectorAll('{which}')].filter(p => p.checkVisibility()).length"
    return plot.parent.execute_script(ask, plot)


def hover(browser, plot, kernel, level):
    """Move the pointer to a dot and return what appears."""
    from selenium.webdriver import ActionChains

    place = browser.execute_script(
        """const [box, kernel, level] = arguments, axes = box._fullLayout;
        const trace = box.data.find(t => t.text && t.meta && t.meta.kernel === kernel && t.meta.level === level);
        const inside = box.getBoundingClientRect();
        return [inside.left + axes.xaxis._offset + axes.xaxis.c2p(trace.x[0]),
                inside.top + axes.yaxis._offset + axes.yaxis.c2p(trace.y[0])];""",
        plot,
        kernel,
        level,
    )
    actions = ActionChains(browser)
    for dx in (25, 0):  # a pointer that moves
        actions.w3c_actions.pointer_action.move_to_location(round(place[0]) + dx, round(place[1]))
    actions.perform()

    def said():
        texts = plot.find_elements("css selector", ".hoverlayer .hovertext")
        return texts and texts[0].get_attribute("textContent")

    return wait_for(said) or ""


def errors(browser):
    return [entry for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def test_it_opens_in_two_seconds_without_a_word_in_the_console(browser, page, both):
    for path in (page, both):
        seconds = min(opened(browser, path) for _ in range(2))  # the machine may be busy with other tests
        assert seconds < 2, path
        assert errors(browser) == []


def test_every_chart_draws_without_a_word_in_the_console(browser, page):
    opened(browser, page)
    for chart in ROOFLINES.CHARTS:
        assert all(points(plot) for plot in plots(browser, chart))
    assert errors(browser) == []


def test_a_planted_error_is_seen_in_the_console(browser, page, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(page.read_text().replace("</body>", '<img src="https://cuda-days.invalid/x.png"></body>'))
    opened(browser, broken)
    assert wait_for(lambda: errors(browser))


def test_a_hover_shows_the_figures_of_the_table(browser, page):
    opened(browser, page)
    (plot,) = plots(browser, "day49-hierarchical")[:1]
    said = hover(browser, plot, "stencil, global", "dram")
    for word in ("stencil, global", "level DRAM", "17.8 MB", "1.647 FLOP/byte", "2328 GFLOP/s", "33.7 % of its roof"):
        assert word in said
    said = hover(browser, plot, "matmul, naive", "l2")
    assert "level L2" in said and "51.6 MB" in said and "5.201 FLOP/byte" in said


def test_a_dot_above_its_roof_says_why(browser, page):
    opened(browser, page)
    said = hover(browser, plots(browser, "day49-dram")[0], "matmul, naive", "requested")
    assert "441.3 % of its roof" in said and "cache-resident" in said


def switch(browser, card, chart, what):
    box = browser.find_elements("css selector", "article")[card].find_element(
        "css selector", f'input[data-chart="{chart}"][data-what="{what}"]'
    )
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", box)
    box.click()


def test_switches_hide_dots_and_bring_them_back(browser, page):
    opened(browser, page)
    plot, rail = plots(browser, "day49-hierarchical")
    before = points(plot)
    assert (before, points(rail)) == (24, 2)
    switch(browser, 0, "day49-hierarchical", "level l2")
    assert wait_for(lambda: points(plot) == 16)
    switch(browser, 0, "day49-hierarchical", "kernel vector add")
    assert wait_for(lambda: points(plot) == 14)
    switch(browser, 0, "day49-hierarchical", "kernel transpose, naive")
    assert wait_for(lambda: points(rail) == 1)
    assert points(plots(browser, "day49-instruction")[0]) == 30  # another chart is another matter
    for what in ("level l2", "kernel vector add", "kernel transpose, naive"):
        switch(browser, 0, "day49-hierarchical", what)
    assert wait_for(lambda: (points(plot), points(rail)) == (24, 2))


def test_two_cards_stand_side_by_side_and_switch_together(browser, both):
    opened(browser, both)
    first, second = browser.find_elements("css selector", "article")
    assert first.location["y"] == second.location["y"] and first.location["x"] < second.location["x"]
    assert [card.get_attribute("data-device") for card in (first, second)] == ["NVIDIA H200", "NVIDIA Other"]
    cards = [plots(browser, "day49-hierarchical", card)[0] for card in (0, 1)]
    assert "283.4 GFLOP/s" in hover(browser, cards[0], "vector add", "dram")
    assert "257.6 GFLOP/s" in hover(browser, cards[1], "vector add", "dram")
    switch(browser, 0, "day49-hierarchical", "level dram")
    assert wait_for(lambda: [points(card) for card in cards] == [16, 16])
