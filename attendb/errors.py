"""The error tree.

    AttendbError
    ├── InputError (ValueError)        a shape, a value or an option that cannot be served
    │   ├── MissingValueError          NaN, null or None where a number or a text is needed
    │   ├── TooLargeError              an array that would not fit the stated bound
    │   └── PlanError                  a plan forced by name that cannot serve this call
    ├── KindError (TypeError)          a dtype or a type of the wrong kind
    ├── NotFoundError (KeyError)       no pair with this key or id
    ├── ConflictError (RuntimeError)   others changed the same rows of a table at the same time
    └── StorageError (OSError)         a table on disk that cannot be read or written as it should

Every message is one sentence: what, where, got, fix. Inner functions raise short facts; the public
boundary adds the context once.
"""

from __future__ import annotations


class AttendbError(Exception):
    """Base of every error that attendb raises on purpose."""


class InputError(AttendbError, ValueError):
    """A shape, a value or an option that cannot be served."""


class MissingValueError(InputError):
    """NaN, null or None where a number or a text is needed."""


class TooLargeError(InputError):
    """An array that would not fit the stated bound, found before it is allocated."""


class PlanError(InputError):
    """A plan forced by name that cannot serve this call."""


class KindError(AttendbError, TypeError):
    """A dtype or a type of the wrong kind."""


class NotFoundError(AttendbError, KeyError):
    """No pair has this key or id."""

    def __str__(self) -> str:  # KeyError would print the sentence in quotes
        return str(self.args[0]) if self.args else ""


class ConflictError(AttendbError, RuntimeError):
    """Others changed the same rows of a table at the same time, and trying again did not help."""


class StorageError(AttendbError, OSError):
    """A table on disk that cannot be read or written: damaged, no permission, no space left."""
