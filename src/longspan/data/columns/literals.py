"""Lists and objects that Python, pandas and NumPy wrote as text, as `DataFrame.to_csv` does: `literal`."""

import ast
import json
import re
from typing import Any

_TOKENS = re.compile(
    r"""(?P<open>[\[({])|(?P<close>[\])}])|(?P<comma>,)|(?P<colon>:)
    |(?P<text>[rbuRBU]?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"))
    |(?P<call>(?:np\.|numpy\.)?[A-Za-z_][\w.]*\()|(?P<word>[^\s\[\](){},:'"]+)|(?P<space>\s+)""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None, "nan": None}
_ENDS = {"[": "]", "(": ")", "{": "}"}
#: How deep lists may be.
_DEEPEST = 8
_CALLS = re.compile(r"(?:np\.|numpy\.)?(?:array|list|str_|bool_?|u?int\d*|float\d*)\(")


#: What is wrong with a text that looks like a list.
NO_LIST = "which is not a readable list"


class _Unreadable(ValueError):
    """A text that is no literal."""


def literal(text: str) -> Any:
    """The list or object that a text encodes: as JSON, or as Python or NumPy writes it.

    "['bug', 'ui']", "['bug' 'ui']" and "array(['bug', 'ui'], dtype=object)" are the same list. Nothing is executed.

    Returns:
        None if it is neither: items of a list are separated by commas or by white space, not by both in turns, and
        NumPy leaves out items of long arrays ("...").
    """
    stripped = text.strip()
    if stripped[:1] not in ("[", "{", "(") and not stripped.startswith("array("):
        return None
    try:
        return json.loads(stripped)
    except (ValueError, RecursionError):
        pass
    try:
        reader = _Reader(stripped)
        value = reader.value(0)
        return value if reader.at_end() else None
    except (_Unreadable, ValueError, SyntaxError):
        return None


def list_in(text: str) -> list[Any] | None:
    """The list that a text encodes; None if it encodes none."""
    value = literal(text)
    return value if isinstance(value, list) else None


def looks_literal(text: str) -> bool:
    """Whether a text begins like a list or an object with texts, though it may not be one."""
    return re.match(r"\s*(?:array\(\s*)?[\[{(]+\s*(?:np\.str_\()?['\"]", text) is not None


class _Reader:
    """Reads one literal from its tokens."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        place = 0
        while place < len(text):
            found = _TOKENS.match(text, place)
            if found is None:
                raise _Unreadable
            self.tokens.append((str(found.lastgroup), found[0]))
            place = found.end()
        self.place = 0

    def at_end(self) -> bool:
        """Whether nothing but white space is left."""
        self.skip()
        return self.place == len(self.tokens)

    def skip(self) -> bool:
        """Skip white space, and return whether there was any."""
        start = self.place
        while self.place < len(self.tokens) and self.tokens[self.place][0] == "space":
            self.place += 1
        return self.place > start

    def next(self) -> tuple[str, str]:
        """The next token that is no white space."""
        self.skip()
        if self.place == len(self.tokens):
            raise _Unreadable
        self.place += 1
        return self.tokens[self.place - 1]

    def peek(self) -> str:
        """The next token's text; empty at the end."""
        self.skip()
        return self.tokens[self.place][1] if self.place < len(self.tokens) else ""

    def value(self, depth: int) -> Any:
        """The next value."""
        if depth > _DEEPEST:
            raise _Unreadable
        kind, token = self.next()
        if kind == "open":
            return self.items(token, depth + 1)
        if kind == "text":
            found = ast.literal_eval(token)
            if not isinstance(found, str):
                raise _Unreadable
            return found
        if kind == "call" and _CALLS.fullmatch(token):
            found = self.value(depth + 1)
            # What follows is the type, such as "dtype=object".
            while (end := self.next()[1]) != ")":
                if end in ("[", "(", "{"):
                    raise _Unreadable
            return found
        if kind != "word":
            raise _Unreadable
        if token in _WORDS:
            return _WORDS[token]
        # NumPy writes whole floats as "1.".
        return int(token) if re.fullmatch(r"[+-]?\d+", token) else float(token)

    def items(self, opening: str, depth: int) -> Any:
        """The rest of a list or an object, after its opening bracket."""
        end, commas = _ENDS[opening], set[bool]()
        values: list[Any] = []
        pairs: dict[Any, Any] = {}
        while self.peek() != end:
            value = self.value(depth)
            if opening == "{":
                if self.next()[1] != ":" or not isinstance(value, str):
                    raise _Unreadable
                pairs[value] = self.value(depth)
            else:
                values.append(value)
            spaced = self.skip()
            if self.peek() == ",":
                self.next()
                commas.add(True)
            elif self.peek() != end:
                if not spaced and not isinstance(value, list):
                    raise _Unreadable
                commas.add(False)
        self.next()
        if len(commas) > 1 or (opening == "{" and False in commas):
            raise _Unreadable
        return pairs if opening == "{" else values
