"""Report of what a build takes over from an earlier store."""

from __future__ import annotations

from packline.cli.output import Line, output, table
from packline.jobs.events import ReusePlanned
from packline.viewing.text import plural, size


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
    for source in planned.sources:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in source.run.items())
        if reasons:
            rows.append(["", f"source {source.source}: to be run: {reasons}"])
    if planned.read_bytes:
        rows.append(["", f"{size(planned.read_bytes)} of inputs were read to compare their content"])
    rows += [["", ("damaged: ", "warning"), line] for line in planned.damaged[:3]]
    return table(rows, "ll", width=output.wrap)
