"""XML as a stream of events in constant memory, without entities of its own: `xml_events`."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any
from xml.parsers import expat


def xml_events(pieces: Iterable[bytes], refuse: Callable[..., None]) -> Iterator[tuple[str, str, Any]]:
    """Yield "start", the tag of an element without its prefix and its attributes; "end" and the tag; "text", "" and
    characters; or "skipped" and the name of an entity that is not known.

    Args:
        pieces: The bytes.
        refuse: Raises an error for an entity that they declare, whose name is its first argument.

    Raises:
        ExpatError: It is not XML.
    """
    found: list[tuple[str, str, Any]] = []
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = lambda tag, given: found.append(("start", tag.rpartition(":")[2], given))
    parser.EndElementHandler = lambda tag: found.append(("end", tag.rpartition(":")[2], None))
    parser.CharacterDataHandler = lambda text: found.append(("text", "", text))
    parser.SkippedEntityHandler = lambda entity, is_parameter: found.append(("skipped", entity, None))
    parser.EntityDeclHandler = refuse
    for piece in chain(pieces, (b"",)):
        parser.Parse(piece, not piece)
        yield from found
        found.clear()
