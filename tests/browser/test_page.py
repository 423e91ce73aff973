"""The page of results in Chromium: it loads in silence, draws everything, and answers mouse, keys and screen."""

import pytest

from ssgd.lab.experiments import experiments

PARTS = [one for one in experiments() if one.part]
ASKED = [one for one in experiments() if not one.part]
NO_PAPER_CURVE = ("fig6", "figA4", "figA5", "figA6")  # not in the paper's source
TEXTS = ("name", "told")
ROWS = "[...document.querySelectorAll('#equal_cost .plot {}')].map(t => t.textContent)"
BLANK = """(() => { const c = document.querySelector('canvas'); const d = c.getContext('2d')
  .getImageData(0, 0, c.width, c.height).data; return !d.some(v => v !== 0); })()"""


def test_loads_without_a_word_on_the_console(browser, page):
    for dark in (False, True):
        browser.open(page, dark=dark)
        assert browser.ask("document.querySelectorAll('section').length") >= len(PARTS) + len(ASKED)
        assert browser.complaints == []


def test_complaints_would_be_heard(browser, tmp_path):
    bad = tmp_path / "report.html"
    bad.write_text("<script>console.error('oh')</script><script>throw 1</script><img src='http://localhost/x.png'>")
    browser.open(bad)
    assert len(browser.complaints) >= 3


def test_every_figure_draws(browser, page):
    browser.open(page)
    drawn = browser.ask(
        "Object.fromEntries([...document.querySelectorAll('figure.chart')].map(f => [f.dataset.chart, {"
        "curves: [...f.querySelectorAll('.plot .curve')].map(c => c.getAttribute('d')),"
        "wide: f.querySelector('.plot').getBoundingClientRect().width,"
        "marks: f.querySelectorAll('.plot .mark').length,"
        "data: f.querySelector('a[download]').href.length,"
        "title: f.querySelector('h4').textContent,"
        "words: f.querySelector('.plot').textContent}]))"
    )
    assert {part.name for part in PARTS if part.x or part.name == "fig2"} <= set(drawn)
    for name, figure in drawn.items():
        assert figure["wide"] > 300 and "NaN" not in str(figure["curves"])
        assert figure["data"] > 60 and len(figure["title"]) > 8
        shown = any(len(path) > 10 for path in figure["curves"]) or figure["marks"]
        assert shown or (name in NO_PAPER_CURVE and "not run" in figure["words"]), name


def test_every_table_has_its_rows(browser, page):
    browser.open(page)
    rows = browser.ask(
        "Object.fromEntries([...document.querySelectorAll('section')]"
        ".map(s => [s.id, s.querySelectorAll('tbody tr').length]))"
    )
    for part in PARTS:
        assert rows[part.name] >= max(1, sum(not cell.ours for cell in part.cells)), part.name
    asked = len(ASKED)
    assert browser.ask("document.querySelectorAll('.overview tbody tr').length") == len(PARTS) + asked
    columns = "[...r.cells].reduce((sum, cell) => sum + cell.colSpan, 0)"
    cells = f"[...document.querySelectorAll('main table')].map(t => [...t.rows].map(r => {columns}))"
    assert all(len(set(table)) == 1 for table in browser.ask(cells))  # as many cells in each row as in the head


def test_hovering_shows_the_values(browser, page):
    browser.open(page)
    assert browser.ask("getComputedStyle(document.querySelector('#fig3 .tip')).display") == "none"
    browser.mouse("mouseMoved", *browser.place("#fig3 .plot svg"))
    shown = browser.ask("document.querySelector('#fig3 .tip').innerText")
    assert "noise level, the paper's units: 0.4" in shown and "paper: 69.42 ± 0.25" in shown
    browser.mouse("mouseMoved", 2, 2)
    assert browser.ask("getComputedStyle(document.querySelector('#fig3 .tip')).display") == "none"


def test_arrow_keys_show_the_values(browser, page):
    browser.open(page)
    browser.ask("document.querySelector('#fig5 .plot svg').focus()")
    browser.key("ArrowRight")
    assert "batch: 1024" in browser.ask("document.querySelector('#fig5 .tip').innerText")
    browser.key("End")
    assert "batch: 16384" in browser.ask("document.querySelector('#fig5 .tip').innerText")
    browser.key("Escape")
    assert browser.ask("getComputedStyle(document.querySelector('#fig5 .tip')).display") == "none"


@pytest.mark.parametrize("width", [360, 1200])
def test_the_price_has_a_row_for_each_gain(width, browser, made_up):
    browser.open(made_up, width=width)
    names = browser.ask(ROWS.format("> svg .name"))
    told = browser.ask(
        "[...document.querySelectorAll('#equal_cost tbody tr')].map(r => [...r.cells].map(c => c.innerText))"
    )
    gains = {row[0] for row in told if len(row) > 1 and "±" in row[1]}
    assert set(names) == gains and any(name.startswith("split (0.15") for name in names)
    assert browser.ask("document.querySelectorAll('#equal_cost .plot > svg .mark').length") == len(names)
    sides = "(t => { const b = t.getBoundingClientRect(); return [b.left, b.right]; })"
    left, right = browser.ask(f"{sides}(document.querySelector('#equal_cost .plot > svg'))")
    placed = browser.ask(f"[...document.querySelectorAll('#equal_cost .plot > svg :is(.name, .ours)')].map({sides})")
    assert all(left <= begin < end <= right for begin, end in placed)


@pytest.mark.parametrize("width", [360, 1200])
def test_the_names_in_the_price_keep_clear_of_the_numbers(width, browser, page):
    browser.open(page, width=width)
    edges = [
        f"[...document.querySelectorAll('#equal_cost .plot > svg .{c}')].map(t => t.getBoundingClientRect())"
        for c in TEXTS
    ]
    gaps = browser.ask(f"(([names, told]) => names.map((box, i) => told[i].left - box.right))([{', '.join(edges)}])")
    assert gaps and min(gaps) > 0


@pytest.mark.parametrize("width", [360, 1200])
def test_beyond_cifar_every_figure_has_a_chart_with_a_mark_at_each_method(width, browser, made_up):
    browser.open(made_up, width=width)
    marks = browser.ask(
        "[...document.querySelectorAll('#other_tasks figure')].map(f => f.querySelectorAll('.plot > svg .mark').length)"
    )
    assert marks == [4, 5, 5]  # perplexity, errors and accuracy: words have no base-2x
    edges = "(t => { const b = t.getBoundingClientRect(); return [b.left, b.right]; })"
    for texts in browser.ask(
        "[...document.querySelectorAll('#other_tasks figure')].map(f => [...f.querySelectorAll('.plot > svg text')]"
        f".filter(t => !t.className.baseVal).map({edges}))"
    ):
        assert len(texts) > 2 and all(0 <= left < right <= width for left, right in texts)  # ticks, and the axis' name


def test_the_top_of_the_page_draws_what_a_gain_costs(browser, made_up):
    browser.open(made_up)
    at_the_top = browser.ask("[...document.querySelectorAll('header .plot .name')].map(t => t.textContent)")
    below = browser.ask(ROWS.format("> svg .name"))
    assert at_the_top and at_the_top == below[: len(at_the_top)]


def test_a_finger_leaves_the_values_where_it_was(browser, page):
    browser.open(page, width=390)
    x, y = browser.place("#fig3 .plot svg")
    browser.send("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    browser.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    assert "paper: 69.42 ± 0.25" in browser.ask("document.querySelector('#fig3 .tip').innerText")
    assert browser.ask("getComputedStyle(document.querySelector('#fig3 .tip')).display") == "block"


def test_on_a_phone_the_gain_stands_before_our_number_and_nothing_exceeds_the_screen(browser, page):
    browser.open(page, width=390)
    heads = browser.ask(
        "[...document.querySelectorAll('section > .scroll .numbers thead')]"
        ".map(h => [...h.querySelectorAll('th')].map(t => [t.textContent, t.getBoundingClientRect().left]))"
    )
    for head in heads:
        names = [name for name, _ in head]
        ours = next(place for place, name in enumerate(names) if name in ("ours", "test", "held out"))
        assert names[1].startswith("minus") or ours == 1
        assert head[ours][1] < 390 - 40
    assert browser.ask("document.documentElement.scrollWidth") <= 390


def test_the_contents_stay_in_sight_on_a_wide_screen_and_are_folded_on_a_phone(browser, page):
    browser.open(page, width=1400)
    browser.place("#equal_cost")
    top, bottom = browser.ask(
        "(b => [b.top, b.bottom])(document.querySelector('.contents a[href=\"#equal_cost\"]').getBoundingClientRect())"
    )
    assert 0 <= top < bottom <= 800
    browser.open(page, width=390)
    assert browser.ask("document.querySelector('.contents details').open") is False


SHOWN = "[...document.querySelectorAll('tr[data-groups]')].filter(r => r.getClientRects().length)"


def test_tables_show_only_what_is_asked_for(browser, page):
    browser.open(page, width=1400)
    before = browser.ask(f"{SHOWN}.length")
    filters = browser.ask("[...document.querySelectorAll('.filter button')].map(b => b.textContent)")
    assert filters == ["reproduced", "calibrated", "undecided", "not reproduced", "not run"]
    for name in filters:
        browser.ask(f"[...document.querySelectorAll('.filter button')].find(b => b.textContent === '{name}').click()")
        groups = browser.ask(f"{SHOWN}.map(r => r.dataset.groups.split('|'))")
        assert all(name in group for group in groups)
        pressed = browser.ask("[...document.querySelectorAll('.filter [aria-pressed=true]')].map(b => b.textContent)")
        assert pressed == [name]
    assert len(groups) > 50  # those not run are unfolded
    browser.ask("document.querySelector('.filter [aria-pressed=true]').click()")
    assert browser.ask(f"{SHOWN}.length") == before


def test_a_column_sorts_the_lines_of_each_group(browser, made_up):
    browser.open(made_up, width=1400)
    table = "document.querySelector('#other_tasks table')"
    number = "parseFloat(r.cells[1].textContent.replace('−', '-'))"
    gains = f"[...{table}.tBodies].map(b => [...b.rows].slice(1).map(r => {number}))"
    for way in ("descending", "ascending", "descending"):
        browser.ask(f"{table}.querySelectorAll('thead button')[1].click()")
        assert browser.ask(f"{table}.querySelectorAll('th')[1].getAttribute('aria-sort')") == way
        for group in browser.ask(gains):
            numbers = [value for value in group if value is not None]
            assert numbers == sorted(numbers, reverse=way == "descending") and len(numbers) > 2


def test_the_surface_turns(browser, made_up):
    browser.open(made_up)
    assert browser.ask(BLANK) is False
    views = [browser.ask("document.querySelector('canvas').toDataURL()")]
    browser.drag(browser.place("canvas", 0.4, 0.5), browser.place("canvas", 0.7, 0.6))
    views.append(browser.ask("document.querySelector('canvas').toDataURL()"))
    browser.ask("document.querySelector('canvas').focus()")
    browser.key("ArrowLeft")
    views.append(browser.ask("document.querySelector('canvas').toDataURL()"))
    names = browser.ask("[...document.querySelector('.surface select').options].map(o => o.value)")
    assert names == ["train loss", "train error, %", "test loss", "test error, %"]
    browser.ask("(() => { const s = document.querySelector('.surface select'); s.value = 'test error, %';"
                "s.dispatchEvent(new Event('change')); })()")  # fmt: skip
    views.append(browser.ask("document.querySelector('canvas').toDataURL()"))
    assert len(set(views)) == 4
    browser.mouse("mouseMoved", *browser.place("canvas"))  # not held: it stays as it is
    assert browser.ask("document.querySelector('canvas').toDataURL()") == views[-1]
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark(dark, browser, page):
    def lightness():
        colour = browser.ask("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in colour[4:-1].split(",")) / 3

    browser.open(page, dark=dark)
    browser.ask("localStorage.clear()")
    browser.open(page, dark=dark)
    assert (lightness() < 100) == dark
    browser.ask("document.getElementById('theme').focus()")
    browser.ask("document.getElementById('theme').click()")
    assert (lightness() < 100) == (not dark)
    browser.open(page, dark=dark)
    assert (lightness() < 100) == (not dark)  # remembered
    browser.ask("localStorage.clear()")


@pytest.mark.parametrize("width", [360, 768])
def test_nothing_is_wider_than_a_phone(width, browser, page):
    browser.open(page, width=width, height=700)
    browser.ask("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert browser.ask("innerWidth") == width
    assert browser.ask("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    beyond = browser.ask(
        "[...document.querySelectorAll('section > *, figure, .plot svg, h1, button:not(th button)')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []
    drawn = browser.ask(
        "(() => { const s = document.querySelector('#fig3 .plot svg');"
        "return 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width; })()"
    )
    assert drawn > 9  # pixels of a label


def test_the_tab_key_reaches_what_can_be_used(browser, made_up):
    browser.open(made_up)
    reached = set()
    for _ in range(60):
        browser.send("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        browser.send("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(browser.ask("document.activeElement.id || document.activeElement.tagName.toLowerCase()"))
    assert {"theme", "a", "div", "svg", "summary"} <= reached


def test_print_is_light_and_whole(browser, page):
    browser.open(page, dark=True)
    browser.send("Emulation.setEmulatedMedia", media="print", features=[])
    assert browser.ask("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert browser.ask("getComputedStyle(document.getElementById('theme')).display") == "none"
    browser.ask("dispatchEvent(new Event('beforeprint'))")
    assert browser.ask("[...document.querySelectorAll('details')].every(d => d.open)")
    browser.send("Emulation.setEmulatedMedia", media="", features=[])
