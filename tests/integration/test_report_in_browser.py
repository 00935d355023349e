"""The page of a report in a real browser: pictures are shown, labels do not overlap, nothing is loaded or logged."""

from __future__ import annotations

import json
import re
import subprocess
from datetime import UTC, datetime
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import lab
from tests.tiers import BROWSER
from tests.unit.pipeline.report.histories import MINUTE_MS, tenures

from onewriter_core.audit.findings import Finding
from onewriter_pipeline.audit import history
from onewriter_pipeline.audit.audit import BOTH, AuditReport
from onewriter_pipeline.jobs.report import write

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not lab.is_there(BROWSER), reason=f"apt-get install {BROWSER}"),
]

COUNT = 3_000
SECONDS_MAX = 300
PICTURES = 4

INSPECTION = """
<script>
addEventListener("load", () => {
  const boxes = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const node = texts.currentNode, range = document.createRange();
    if (!node.textContent.trim() || ["SCRIPT", "STYLE"].includes(node.parentNode.tagName)) continue;
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) boxes.push([box, node]);
  }
  for (const image of document.images) boxes.push([image.getBoundingClientRect(), image]);
  boxes.sort((one, other) => one[0].top - other[0].top);
  const overlapping = [];
  boxes.forEach(([box, node], place) => {
    for (let next = place + 1; next < boxes.length && boxes[next][0].top < box.bottom - 1; next++) {
      const [other, behind] = boxes[next];
      if (other.left < box.right - 1 && box.left < other.right - 1 && node !== behind)
        overlapping.push([node.textContent || node.alt, behind.textContent || behind.alt]);
    }
  });
  const result = document.createElement("pre");
  result.id = "inspection";
  result.textContent = JSON.stringify({
    texts: boxes.length - document.images.length,
    overlapping: overlapping.slice(0, 5),
    pictures: [...document.images].map(each => [each.complete, each.naturalWidth, each.alt]),
    tooWide: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    loaded: performance.getEntriesByType("resource").map(each => each.name)
      .filter(name => !name.startsWith("data:")),
  });
  document.body.append(result);
});
</script>
"""


def report() -> AuditReport:
    """Thousands of tenures of three topics, and everything else that a page shows."""
    timeline = tenures(COUNT, leaderless_ms=70_000)
    written = [
        {
            "topic": row["topic"],
            "producer": row["producer"] or "(shared)",
            "epoch": row["epoch"],
            "ledger": row["epoch"],
            "entries": 100,
            "messages": 1_000 + row["epoch"],
            "bytes": 10**6,
        }
        for row in timeline
    ]
    topics = sorted({row["topic"] for row in timeline})
    sentence = "the holder " + "service-" * 30 + " was granted the epoch twice"
    return AuditReport(
        BOTH,
        findings=[Finding(topic, "S2", ("7-1", "7-9"), sentence) for topic in topics],
        notes=[f"{topic}: a note" for topic in topics],
        topics=[
            {
                "topic": topic,
                "first": "5-1",
                "last": "9-9",
                "ledgers": 3,
                "entries": 9,
                "messages": 9,
            }
            for topic in topics
        ],
        timeline=timeline,
        leaderless=history.leaderless(timeline),
        holders=history.holders(written),
        written=written,
        losses=[{"log": topics[0], "after": "5-1", "last": "5-9"}],
        records=COUNT,
    )


def shown(page: Path, width: int, scratch: Path) -> tuple[dict[str, Any], list[str]]:
    """What the browser shows of a page, and the messages of its console."""
    copy = scratch / "inspected.html"
    copy.write_text(page.read_text(encoding="utf-8") + INSPECTION, encoding="utf-8")
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",  # tests run as root
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={scratch / 'profile'}",
        f"--window-size={width},900",
        "--virtual-time-budget=60000",
        "--dump-dom",
        copy.as_uri(),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS_MAX)
    found = re.search(r'<pre id="inspection">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr[-2_000:]
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    return json.loads(unescape(found[1])), console


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the report."""
    now = datetime.fromtimestamp(COUNT * MINUTE_MS / 1000, UTC)
    return write(report(), tmp_path_factory.mktemp("report"), now)[0]


@pytest.mark.parametrize("width", [1280, 400])
def test_page_with_thousands_of_tenures_is_readable(page: Path, width: int, tmp_path: Path) -> None:
    found, console = shown(page, width, tmp_path)
    assert console == []
    assert found["loaded"] == []
    assert found["overlapping"] == []
    assert found["tooWide"] <= 0
    assert [each[:1] for each in found["pictures"]] == [[True]] * PICTURES
    assert all(pixels > 1_000 for _, pixels, _ in found["pictures"])
    assert found["texts"] > COUNT


def test_inspection_finds_errors_and_overlapping_labels(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><p>one</p><p style='margin-top:-2em'>other</p><img src='data:image/png;base64,'>"
        "<script>console.error('an error')</script>",
        encoding="utf-8",
    )
    found, console = shown(page, 800, tmp_path)
    assert found["overlapping"]
    assert found["pictures"][0][1] == 0
    assert any("an error" in line for line in console)
