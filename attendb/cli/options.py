"""Arguments and options, with their help: each is explained once, whichever commands take it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import typer

Texts: TypeAlias = list[str] | None
Text: TypeAlias = str | None


def _option(what: str, metavar: str, *names: str) -> typer.models.OptionInfo:
    return typer.Option(*names, metavar=metavar, help=what, show_default=False)


TableName: TypeAlias = Annotated[str, typer.Argument(metavar="TABLE", help="A stored table: a folder.")]
TableOrFile: TypeAlias = Annotated[
    str,
    typer.Argument(metavar="TABLE_OR_FILE", help="A stored table (a folder), or a CSV, Parquet or other file of rows."),
]
Files: TypeAlias = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="CSV, TSV, Parquet, Feather, JSON Lines or npy files; globs and folders too."
    ),
]
MorePairs: TypeAlias = Annotated[
    Texts,
    typer.Argument(
        metavar="NAME=VALUE", help="The rest of --at, as in --at temperature=20 vacuum=40.", show_default=False
    ),
]
At: TypeAlias = Annotated[
    Texts,
    _option("NAME=VALUE pairs for one query, or a file with a query in each row (- is stdin).", "NAME=VALUE|FILE"),
]
Key: TypeAlias = Annotated[
    Texts, _option("A column of the key; repeat it. Default: all other numeric columns.", "COLUMN")
]
Value: TypeAlias = Annotated[Texts, _option("A column to answer; repeat it.", "COLUMN")]
IdColumn: TypeAlias = Annotated[
    Text, _option("The column of whole numbers or text that names the rows. Default: numbers from 0.", "COLUMN", "--id")
]
Where: TypeAlias = Annotated[Text, _option("Only rows that satisfy a condition in SQL: 'output > 450'.", "CONDITION")]
AtVersion: TypeAlias = Annotated[Text, _option("A number or a tag: the table as it was then.", "VERSION")]
Batch: TypeAlias = Annotated[
    Text, _option("A name for these rows: made again under this name, the command adds nothing.", "NAME")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of words.")]
Score: TypeAlias = Annotated[
    Texts,
    _option(
        "gaussian, laplacian, euclidean, boxcar, triangular, epanechnikov, dot, scaled-dot, cosine, edit, ngram, "
        "equal, constant, or one that is saved with the table; COLUMN=SCORE for one column. Default: gaussian for "
        "numbers, edit for text; equal for text beside numbers that has few different texts.",
        "SCORE",
    ),
]
Bandwidth: TypeAlias = Annotated[
    Texts,
    _option(
        "How far is near: one number, one for each key column (5,12.5), or COLUMN=NUMBER. Default: the standard "
        "deviation of each column × m^(−1/(d+4)), for m rows and d columns.",
        "NUMBER",
    ),
]
Weights: TypeAlias = Annotated[
    Text,
    _option(
        "softmax[:TEMPERATURE], nearest[:AT_LEAST], top:K[:WEIGHTS], normalized, uniform, sparsemax, entmax15, "
        "linear, conic, sampled[:SEED]. Default: that of the score; nearest for text alone, softmax:0.2 for text "
        "beside numbers.",
        "WEIGHTS",
    ),
]
Explain: TypeAlias = Annotated[
    int,
    typer.Option(min=0, metavar="N", help="Show the N rows of highest weight for each answer.", show_default=False),
]
AnswersOut: TypeAlias = Annotated[Text, _option("Write queries and answers to .csv, .parquet or .jsonl.", "FILE")]
Heatmap: TypeAlias = Annotated[Text, _option("Draw the weights to .png, .svg or .pdf.", "FILE")]
Tolerance: TypeAlias = Annotated[
    float | None, _option("Accepted error, as a share of the range of the values. Default: exact.", "NUMBER")
]
IdColumns: TypeAlias = Annotated[
    Texts,
    _option(
        "A column that only names rows; repeat it. Default: id, and text without spaces that differs in every row.",
        "COLUMN",
        "--id",
    ),
]
Features: TypeAlias = Annotated[
    Texts, _option("A column to predict from; repeat it. Default: all but the value and what names rows.", "COLUMN",
                   "--key")
]  # fmt: skip
Predicted: TypeAlias = Annotated[
    Text, _option("The column to predict: numbers, or text (true and false too) for classes.", "COLUMN", "--value")
]
Similarity: TypeAlias = Annotated[
    Literal["bandwidth", "linear", "deep"],
    typer.Option(
        help="What is learned of likeness: how near is near in each column; a linear map; a network, slower and "
        "meant for many rows."
    ),
]
Interval: TypeAlias = Annotated[
    float | None,
    _option("Also the ends of an interval that holds this share of new rows, such as 0.9.", "SHARE"),
]
Picture: TypeAlias = Annotated[
    Text,
    _option("Show where answers came from: all of them in one page (.html), or the first (.png, .svg, .pdf).", "FILE"),
]
Seed: TypeAlias = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Chooses the rows of each step of learning.")]
MaxSeconds: TypeAlias = Annotated[
    float, typer.Option(min=0, metavar="SECONDS", help="Learning stops by then, if not before.")
]
TableOut: TypeAlias = Annotated[str, typer.Option("--out", metavar="TABLE", help="The new table: a folder, made here.")]
OldVersion: TypeAlias = Annotated[str, typer.Argument(metavar="VERSION", help="A number or a tag (attendb versions).")]
Ids: TypeAlias = Annotated[Texts, _option("The id of a row; repeat it.", "ID", "--id")]
DryRun: TypeAlias = Annotated[bool, typer.Option("--dry-run", help="Only say how many rows it would be.")]
Columns: TypeAlias = Annotated[Texts, _option("A column to write; repeat it. Default: all.", "COLUMN", "--column")]
ExportOut: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="Where the rows go: .csv, .tsv (also .gz, .zst), .parquet, .jsonl; - is stdout."
    ),
]
Delimiter: TypeAlias = Annotated[
    Text, _option("Between the cells of a text file, or tab. Default: the one that cuts all rows alike.", "CHARACTER")
]
Decimal: TypeAlias = Annotated[Text, _option("The decimal mark of a text file: . or , (default: found out).", "MARK")]
Encoding: TypeAlias = Annotated[Text, _option("Of a text file, such as cp1252. Default: UTF-8.", "NAME")]
Types: TypeAlias = Annotated[
    Texts,
    _option("The type of a column: text, float64, date, …; repeat it. Default: found out.", "COLUMN=TYPE", "--type"),
]
Missing: TypeAlias = Annotated[
    Texts,
    _option(
        "A word of a text file that stands for a missing value, in any column; repeat it. Default: the usual ones (NA, "
        "null, …).",
        "WORD",
    ),
]
Ragged: TypeAlias = Annotated[
    Text, _option("pad: rows of a text file that are too short are filled up. Default: they are an error.", "pad")
]
DateFormat: TypeAlias = Annotated[
    Text,
    _option("Of the dates in a text file, such as %d/%m/%Y. Default: the one that fits a whole column.", "FORMAT"),
]
Sql: TypeAlias = Annotated[
    Text, _option("A query to the database whose URI stands in the place of the file: sqlite:///plant.db.", "SELECT")
]
Overwrite: TypeAlias = Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")]
DropOlder: TypeAlias = Annotated[
    float | None,
    typer.Option("--drop-older-than", min=0, metavar="DAYS", help="Remove versions that are older, for good."),
]
