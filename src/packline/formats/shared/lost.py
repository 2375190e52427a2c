"""Parts of a store that a layout of tokens alone does not keep: ledger entries that formats share.

A format that keeps some of them declares so; it adds other losses, such as a tail, itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packline.formats.types import NotPreserved

if TYPE_CHECKING:
    from packline.formats.exporting.documents import DocumentView


def lost_of(
    view: DocumentView, format: str, *, keeps_loss: bool = False, keeps_provenance: bool = False
) -> tuple[NotPreserved, ...]:
    """Boundary tokens that the view's edges leave out, and the loss mask and provenance unless kept.

    Args:
        format: name of the format, for the reasons.

    >>> from packline.formats.exporting.documents import DocumentView
    >>> [str(one).partition(":")[0] for one in lost_of(DocumentView(store, edges="none"), "some format")]
    ['end-of-document tokens', 'provenance']
    """
    lost = []
    why = f"documents have the edges {view.edges!r} in the output"
    if view.rule.drop_first:
        lost.append(NotPreserved("begin-of-document tokens", view.documents, "tokens", why))
    if view.rule.drop_last:
        lost.append(NotPreserved("end-of-document tokens", view.documents, "tokens", why))
    if view.has_loss and not keeps_loss:
        lost.append(NotPreserved("loss mask", view.tokens, "tokens", f"{format} has no place for one"))
    if not keeps_provenance:
        lost.append(NotPreserved("provenance", view.documents, "documents", f"{format} has no place for it"))
    return tuple(lost)
