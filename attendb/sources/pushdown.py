"""Which conditions the storage can evaluate itself, with the meaning that they have in SQLite.

Only what is sure to mean the same in both is translated: columns against literals of their kind, IN, BETWEEN, IS NULL,
AND, OR and NOT. Everything else is left to `filter.py`, which is slower and always right: of arithmetic, say, ∞ · 0 is
NULL there and a number above all others here.

- A literal must be exact in the column's type: Lance would round it.
- Whole numbers are compared with whole literals only.
- Texts are equal in Unicode's form NFC, and stored as they were given: only a literal that no other text has as its
  form NFC is translated, and only for equality.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

LARGEST_EXACT = 2**53
BECOME_ASCII = frozenset("K;`")  # U+212A, U+037E and U+1FEF have these as their form NFC
_WHOLE = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|\.[0-9]+([eE][+-]?[0-9]+)?")
_PLAIN = re.compile(r"[^\x00\\\[\]{}@#$?:|&~^%/]*")  # no comments, parameters, bits, paths, nor what dialects differ in


class Field(NamedTuple):
    """A column as a condition sees it: its name in Lance and its type."""

    stored: str
    kind: pa.DataType


class _Unlike(Exception):
    """Lance would not mean the same."""


def pushed_down(text: str, fields: Mapping[str, Field]) -> str | None:
    """The condition in the storage's own words, or None. ``fields``: by lower-case name, `id` among them."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    text = unicodedata.normalize("NFC", text)
    if not _PLAIN.fullmatch(text) or "--" in text:
        return None
    try:
        tree = sqlglot.parse_one(f"SELECT 1 FROM t WHERE ({text}\n)", read="sqlite")
        where = tree.args["where"].this
        if {k for k, v in tree.args.items() if v} - {"expressions", "from", "from_", "where", "kind"}:
            return None
        return _Translator(fields).condition(where)
    except (_Unlike, SqlglotError, KeyError, RecursionError, AttributeError):
        return None


class _Translator:
    def __init__(self, fields: Mapping[str, Field]):
        from sqlglot import expressions as e

        self.fields = fields
        self.e = e
        self.compare: dict[type, str] = {e.EQ: "=", e.NEQ: "<>", e.LT: "<", e.LTE: "<=", e.GT: ">", e.GTE: ">="}
        self.flipped = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

    def condition(self, node: Any) -> str:
        e = self.e
        if isinstance(node, e.Paren):
            return f"({self.condition(node.this)})"
        if isinstance(node, (e.And, e.Or)):
            word = "AND" if isinstance(node, e.And) else "OR"
            return f"({self.condition(node.this)} {word} {self.condition(node.expression)})"
        if isinstance(node, e.Not):
            return f"(NOT {self.condition(node.this)})"
        if isinstance(node, e.Is) and isinstance(node.expression, e.Null):
            return f"({self._column(node.this).name} IS NULL)"
        if isinstance(node, e.In) and {k for k, v in node.args.items() if v} == {"this", "expressions"}:
            return self._any(node.this, node.expressions)
        if isinstance(node, e.Between) and not node.args.get("symmetric"):
            low = self._compared(node.this, node.args["low"], ">=")
            return f"({low} AND {self._compared(node.this, node.args['high'], '<=')})"
        if type(node) in self.compare:
            word = self.compare[type(node)]
            if self._is_literal(node.this):
                return self._compared(node.expression, node.this, self.flipped[word])
            return self._compared(node.this, node.expression, word)
        raise _Unlike

    def _any(self, left: Any, literals: list[Any]) -> str:
        if not literals or len(literals) > 1000:
            raise _Unlike
        return "(" + " OR ".join(self._compared(left, literal, "=") for literal in literals) + ")"

    def _compared(self, left: Any, literal: Any, word: str) -> str:
        if self._is_literal(left) or not self._is_literal(literal):
            raise _Unlike
        side = self._operand(left)
        return f"({side.name} {word} {side.literal(literal, word)})"

    def _operand(self, node: Any) -> _Operand:
        while isinstance(node, self.e.Paren):
            node = node.this
        return self._column(node)

    def _column(self, node: Any) -> _Operand:
        e = self.e
        if not isinstance(node, e.Column) or node.args.get("table") or not isinstance(node.this, e.Identifier):
            raise _Unlike
        field = self.fields.get(node.this.this.lower())
        if field is None:
            raise _Unlike
        return _Operand(f"`{field.stored}`", field.kind, self._value)

    def _is_literal(self, node: Any) -> bool:
        e = self.e
        while isinstance(node, (e.Paren, e.Neg)):
            node = node.this
        return isinstance(node, e.Literal)

    def _value(self, node: Any) -> int | float | str:
        e = self.e
        while isinstance(node, e.Paren):
            node = node.this
        if isinstance(node, e.Literal) and node.is_string:
            return str(node.this)
        return self._number(node)

    def _number(self, node: Any) -> int | float:
        e = self.e
        if isinstance(node, e.Paren):
            return self._number(node.this)
        if isinstance(node, e.Neg):
            return -self._number(node.this)
        if not isinstance(node, e.Literal) or node.is_string or not _NUMBER.fullmatch(node.this):
            raise _Unlike
        return int(node.this) if _WHOLE.fullmatch(node.this) else float(node.this)


class _Operand(NamedTuple):
    name: str
    kind: pa.DataType
    value: Callable[[Any], int | float | str]

    def literal(self, node: Any, word: str) -> str:
        """The literal in Lance's words, where it is exact in the operand's type."""
        value = self.value(node)
        if isinstance(value, str):
            plain = value.isascii() and not BECOME_ASCII & set(value) and "\x00" not in value
            if not (pa.types.is_string(self.kind) or pa.types.is_large_string(self.kind)):
                raise _Unlike
            if word not in ("=", "<>") or not plain:
                raise _Unlike
            return "'" + value.replace("'", "''") + "'"
        if pa.types.is_floating(self.kind) and self.kind.bit_width >= 32:
            number = float(value)
            if isinstance(value, int) and abs(value) > LARGEST_EXACT or not math.isfinite(number):
                raise _Unlike
            if self.kind == pa.float32():
                with np.errstate(over="ignore"):
                    if float(np.float32(number)) != number:
                        raise _Unlike
            return _decimal(number)
        if pa.types.is_integer(self.kind) and isinstance(value, int):
            signed = pa.types.is_signed_integer(self.kind)
            bits = self.kind.bit_width - signed
            if not (-(2**bits) * signed <= value < 2**bits) or value >= 2**63:
                raise _Unlike
            return str(value)
        raise _Unlike


def _decimal(number: int | float) -> str:
    if isinstance(number, int) and abs(number) > LARGEST_EXACT or not math.isfinite(float(number)):
        raise _Unlike
    return repr(float(number))
