"""Report of what a build takes over from an earlier store, and of inputs that are compared with it."""

from __future__ import annotations

from packline.cli.output import Line, output, table
from packline.jobs.events import Comparing, ReusePlanned
from packline.viewing.text import percent, plural, size

SHOWN = 12
"""Largest number of reasons that are shown."""


def reuse_lines(planned: ReusePlanned) -> list[Line]:
    """Lines that describe a plan of reuse: what is taken over, and by source why the rest is run."""
    count = planned.units + planned.units_run
    text = sum(source.text_bytes for source in planned.sources)
    rows: list[Line] = [
        [
            ("reuse", "quiet"),
            f"{planned.units:,} of {plural(count, 'unit')}, about {size(text)} of text, from {planned.store}",
        ]
    ]
    reasons = [
        f"{source.source}: {plural(number, 'unit')} to run: {reason}"
        for source in planned.sources
        for reason, number in source.run.items()
    ]
    rows += [["", line] for line in reasons[:SHOWN]]
    if len(reasons) > SHOWN:
        rows.append(["", f"and {plural(len(reasons) - SHOWN, 'more reason')}; --json lists all"])
    if planned.read_bytes:
        rows.append(["", f"{size(planned.read_bytes)} of inputs were read to compare their content"])
    rows += [["", (f"damaged: {line}", "warning")] for line in planned.damaged[:3]]
    return table(rows, "ll", width=output.wrap)


def comparing_line(event: Comparing) -> str:
    """Progress of a comparison of inputs as one line."""
    what = f"{plural(event.files, 'input')} with other times, {size(event.bytes)}"
    return f"{percent(event.fraction)}  comparing {what}, with what was read of them"
