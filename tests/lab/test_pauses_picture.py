"""The picture of a session with pauses, and the figures that README.md takes from it."""

import re
from functools import cache
from xml.etree import ElementTree

from tests.docs.documents import README
from tests.kit.paths import ROOT
from tests.long.figures import pauses
from tests.long.figures.timeline import Panel, timeline

measured = cache(pauses.measured)


def test_the_readme_says_what_the_session_costs() -> None:
    reports = [*measured().values()]
    assert not any(report.faults for report in reports)
    words = (
        r"costs (0\.\d\d) of doing nothing at Opus 5\.5, with both (0\.\d\d) \((.*?) and (.*?) of actions out of sight"
    )
    said = re.search(words, " ".join(README.split()))
    assert said
    bills, hidden = said.groups()[:2], said.groups()[2:]
    assert [*bills] == [f"{report.whole_bill.ratio:.2f}" for report in reports]
    assert [*hidden] == [f"{100 * report.needs.share_out_of_sight:.1f} %" for report in reports]
    assert f"]({pauses.PICTURE})" in README


def test_the_picture_is_the_one_that_is_measured() -> None:
    """`make pauses` draws it anew."""
    text = (ROOT / pauses.PICTURE).read_text(encoding="utf-8")
    assert text == pauses.drawn(measured(), [each.sent for each in pauses.session().times])


def test_a_panel_shows_the_prompt_and_where_its_cache_was_alive() -> None:
    prompts = [(0.0, 1_000.0), (60.0, 2_000.0), (1_200.0, 4_000.0), (1_800.0, 4_000.0)]
    panels = [
        Panel("<none>", prompts, [0, 0, 2_000, 4_000]),
        Panel("warm", prompts, [0, 0, 2_000, 0], [330.0, 1_470.0]),
    ]
    text = timeline(panels, lifetime=300)
    ElementTree.fromstring(text)  # noqa: S314  # our own text: it is well-formed
    assert "href" not in text
    assert "url(" not in text
    assert {"&lt;none&gt;", "warm", "written again", "0 min", "20 min"} <= {*re.findall(r"<text[^>]*>([^<]*)", text)}
    first, second = text.split("<g ")[1:]

    def widths(panel: str, name: str) -> list[float]:
        return [float(width) for width in re.findall(rf'<rect class="{name}" [^>]*width="([\d.]+)"', panel)]

    whole = widths(first, "e")[0] / 1_800
    alive = [[round(width / whole, -1) for width in widths(panel, "a")] for panel in (first, second.split("</g>")[0])]
    assert alive == [[360, 300, 0], [630, 600]]
    heights = [float(height) for height in re.findall(r'class="w" [^>]*height="([\d.]+)"', first)]
    assert heights[1] == 2 * heights[0]
    assert second.split("</g>")[0].count('class="k"') == 2
