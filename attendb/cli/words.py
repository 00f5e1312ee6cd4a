"""What the library says in Python, in the words of a shell."""

from __future__ import annotations

import re

_SAID = [
    (r"restore\((\w+)\)", r"attendb restore TABLE \1"),
    (r"verify\(\)", "attendb verify"),
    (r"versions\(\)", "attendb versions"),
    (r"open it with Database\.open", "add to it with attendb append"),
    (r"Database\.create", "attendb create"),
    (r"Database\.open", "attendb query"),
    (r"types=\{'([^']*)': …\}", r"--type \1=…"),
    (r"name the word in missing= if it stands", "name the word with --missing if it stands"),
    (
        r"name it in missing=, or ask for text",
        "name it with --missing, or read the column as text (--type COLUMN=text)",
    ),
    (r"name it in missing=", "name it with --missing"),
    (r"\bpass ragged='pad' \(--ragged pad\)", "say --ragged pad"),
    (r"encoding='([^']*)' \(--encoding \1\)", r"--encoding \1"),
    (r"date_format='%d/%m/%Y' or '%m/%d/%Y' is given", "--date-format %d/%m/%Y or %m/%d/%Y is given"),
    (r"overwrite=True \(--overwrite\)", "--overwrite"),
    (r"pass id='([^']*)'", r"say --id \1"),
    (r"give sqlite:///(\S+) and query=", r"give sqlite:///\1 and --sql"),
    (r"ask for top=, for fewer queries, or raise max_bytes", "ask fewer queries, or leave --heatmap out"),
    (r"say which rows with query=", "say which rows with --sql"),
    (r"query= needs", "--sql needs"),
    (r"\b(delimiter|decimal|encoding|format)='([^']*)'", r"--\1 '\2'"),
    (r"choose with values=, such as values='([^']*)'", r"choose with --value \1"),
]


def in_shell(sentence: str) -> str:
    """The same advice, as it is typed in a shell."""
    for said, typed in _SAID:
        sentence = re.sub(said, typed, sentence)
    return sentence
