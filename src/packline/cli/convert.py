"""`packline convert`: from one layout to another, through a store that is kept."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Annotated, Any

from cyclopts import Parameter

from packline.cli.arguments import MAIN, RUNNING, Flags, PlaceArguments, RowShape, option
from packline.cli.exporting import export_facts, options_of, show_exported, watch_export
from packline.cli.import_ import Reading
from packline.cli.main import DONE, interrupted
from packline.cli.output import output
from packline.cli.progress import Tally, watch
from packline.formats.choice import is_store
from packline.formats.export import ExportPlanned
from packline.jobs.events import Event
from packline.storage.sharing import Link

_FLAGS, _PLACE, _READING, _ROWS = Flags(), PlaceArguments(), Reading(), RowShape()


def convert(
    source: Annotated[str, Parameter(help="A store, or a dataset of another project.")],
    out: Annotated[str, Parameter(help="Output folder, or URI; the store between is kept at OUT.store.")],
    /,
    *,
    to: Annotated[str, Parameter(help="Output format; `packline formats` lists them.", group=MAIN)],
    reading: Reading = _READING,
    set_out: Annotated[
        list[str] | None,
        option("Option of the format to write: NAME=VALUE, a list as NAME=A,B. May be repeated.", MAIN),
    ] = None,
    rows: RowShape = _ROWS,
    link: Annotated[Link, option("How to share files with the store. Default: auto.", RUNNING)] = "auto",
    workers: Annotated[
        int | None, option("Number of processes. Default: one per usable core.", RUNNING)
    ] = None,
    place: PlaceArguments = _PLACE,
    flags: Flags = _FLAGS,
) -> int:
    """Convert a data set to another layout; see `help_texts`."""
    from packline.exports import convert as convert_dataset

    stored, tally = is_store(source, reading.from_), Tally()
    store = source if stored else f"{out.rstrip('/')}.store"
    eod, bos = reading.boundary()
    try:
        with ExitStack() as display:
            hear = [(lambda event: None) if stored else display.enter_context(watch(tally, store))]

            def on_event(event: Event) -> None:
                if isinstance(event, ExportPlanned):  # the import is finished
                    display.close()
                    hear[0] = display.enter_context(watch_export(out))
                hear[0](event)

            settings: Any = rows.settings()
            exported = convert_dataset(
                source,
                out=out,
                to_format=to,
                from_format=reading.from_,
                tokenizer=reading.tokenizer,
                eod=eod,
                bos=bos,
                options=options_of(set_out),
                import_options=reading.options(),
                link=link,
                workers=workers,
                on=place.place(),
                on_event=on_event,
                **settings,
            )
    except KeyboardInterrupt as error:
        return interrupted(error, "what is finished is kept")
    show_exported(exported)
    values: dict[str, Any] = export_facts(exported, "convert", DONE)
    output.result({**values, "source": source, "store": store, "notes": tally.notes})
    return DONE
