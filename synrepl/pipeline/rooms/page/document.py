"""A page: a title, figures, charts and tables."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from html import escape
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from synrepl.core.errors import StorageError
from synrepl.pipeline.rooms.page.charts import clean

#: Maximum number of rows of a table, and of characters in a cell.
MAX_TABLE_ROWS = 500
_MAX_CELL = 200


class PageNotWritten(StorageError):
    """the page {path} cannot be written: {reason}"""


@dataclass(frozen=True, slots=True)
class PageSection:
    """A part of a page.

    :ivar text: a sentence about it, for people
    :ivar html: a chart or a table, as HTML
    """

    title: str
    text: str
    html: str


@dataclass(frozen=True, slots=True)
class ResultPage:
    """A page of a result.

    :ivar figures: numbers that sum it up, by what they are
    """

    title: str
    figures: Mapping[str, str]
    sections: Sequence[PageSection]

    def html(self, made: datetime) -> str:
        """The whole file.

        :param made: when the result was computed
        """
        figures = "".join(
            f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>"
            for name, value in self.figures.items()
        )
        sections = "".join(
            f"<section><h2>{escape(each.title)}</h2><p>{escape(each.text)}</p>{each.html}</section>"
            for each in self.sections
        )
        when = made.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
            # Whatever a room's texts are, nothing of this page runs or is loaded.
            '<meta http-equiv="Content-Security-Policy"'
            " content=\"default-src 'none'; style-src 'unsafe-inline'\">"
            '<meta name="viewport" content="width=device-width">'
            f"<title>{escape(self.title)}</title><style>{_STYLE}</style></head>"
            f'<body><h1>{escape(self.title)}</h1><p class="note">Computed {when}.</p>'
            f'<div class="figures">{figures}</div>{sections}</body></html>'
        )

    def write(self, path: Path, made: datetime) -> None:
        """Write the file, in the place of one that exists.

        :raises PageNotWritten:
        """
        try:
            with NamedTemporaryFile(
                "w", encoding="utf-8", dir=path.absolute().parent, suffix=".html", delete=False
            ) as file:
                try:
                    file.write(self.html(made))
                    file.flush()
                    # Like any file that a user writes, not only for the user.
                    mask = os.umask(0)
                    os.umask(mask)
                    os.chmod(file.name, 0o666 & ~mask)
                    os.replace(file.name, path)
                except BaseException:
                    os.unlink(file.name)
                    raise
        except OSError as error:
            raise PageNotWritten(path=path, reason=error.strerror or error) from None


class Heading(NamedTuple):
    """The head of a column of a table.

    :ivar is_number: the column has numbers, which are aligned at the right
    """

    name: str
    is_number: bool


def table(heads: Sequence[Heading], rows: Sequence[Sequence[Any]], count: int | None = None) -> str:
    """A table of the first rows.

    :param count: the number of rows there are, if not all are given
    """
    if not rows:
        return '<p class="note">No rows.</p>'
    classes = [' class="number"' if head.is_number else "" for head in heads]
    head = "".join(
        f"<th{style}>{escape(head.name.replace('_', ' '))}</th>"
        for head, style in zip(heads, classes, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{style}>{_text(cell)}</td>" for cell, style in zip(row, classes, strict=True)
        )
        + "</tr>"
        for row in rows[:MAX_TABLE_ROWS]
    )
    more = (len(rows) if count is None else count) - min(len(rows), MAX_TABLE_ROWS)
    note = f'<p class="note">Further rows that are not shown: {more:,}.</p>' if more > 0 else ""
    return f'<div class="table"><table><tr>{head}</tr>{body}</table></div>{note}'


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.{0 if value.is_integer() else 1}f}"
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()[:_MAX_CELL]
    if isinstance(value, date):
        return value.isoformat()
    return clean(str(value), _MAX_CELL)


_STYLE = """
:root{color-scheme:light dark;--ink:#1d2530;--soft:#5d6977;--grid:#dde2e8;--paper:#fff;--a:#2563a8;
--b:#b9d2ec;--c:#c4572b;--d:#8a94a0}
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ef;--soft:#9aa6b3;--grid:#313a45;--paper:#161b21;
--a:#6aa8e8;--b:#2c4a69;--c:#e88a5f;--d:#6d7783}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;
margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .2rem}p{margin:.3rem 0 .8rem}
.note{color:var(--soft);font-size:.85rem}
.figures{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:1rem 0}
.figures div{display:flex;flex-direction:column}.figures b{font-size:1.5rem}
.figures span{color:var(--soft);font-size:.85rem}
svg{width:100%;height:auto;display:block}svg text{fill:var(--ink);font-size:13px}
svg .small{font-size:12px;fill:var(--soft)}svg .end{text-anchor:end}svg .middle{text-anchor:middle}
.grid{stroke:var(--grid)}.bar,.kind0{fill:var(--a);background:var(--a)}.before{fill:var(--b)}
.kind1{fill:var(--b);background:var(--b)}.kind2{fill:var(--c);background:var(--c)}
.kind3{fill:var(--d);background:var(--d)}
.line{fill:none;stroke:var(--a);stroke-width:2}.ahead{fill:none;stroke:var(--a);stroke-width:2;
stroke-dasharray:5 4}.band{fill:var(--b);opacity:.6}.dot{fill:var(--a)}
.key{margin-right:1.2rem}.key i{display:inline-block;width:.9em;height:.9em;margin-right:.4em}
.table{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{text-align:left;padding:.25rem .7rem .25rem 0;border-bottom:1px solid var(--grid);
overflow-wrap:anywhere;vertical-align:top}td{min-width:4rem}.number{text-align:right}td.number{white-space:nowrap}
""".replace("\n", "")
