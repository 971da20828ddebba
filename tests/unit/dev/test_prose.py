from pathlib import Path

import pytest

from dev.prose import KINDS, NO_VERB, Finding, Report, broken, judge, listed, missed, report, risen, subject_problems
from dev.renames import Rename, homonyms, unrenamed

KIND = {kind.name: kind for kind in KINDS}
Found = list[tuple[int, str, list[str]]]


def read(kind: str, text: str) -> Found:
    """Read a text: the line of each sentence, the sentence, and the rules that it breaks."""
    return [(s.line, s.text, list(broken(KIND[kind], s))) for s in KIND[kind].read("file", text)]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return root


def words(count: int) -> str:
    return "A" + " word" * (count - 1) + "."


MARKDOWN = f"""# What a heading says

The worker, whoever owns it, stops.
Its slot is `free. And who`
`waits` again. Nobody
counts.

| What | Who |
|---|---|
| a | somebody |

```python
# Who reads code?
```

- These items are sentences
- A [link](who-is-it.md) is text
  and goes on. {words(26)}
- {words(25)}
"""


def test_markdown_is_split_without_headings_tables_and_code() -> None:
    assert read("docs", MARKDOWN) == [
        (3, "The worker, whoever owns it, stops.", ["person"]),
        (4, "Its slot is `free. And who` `waits` again.", ["leading"]),
        (5, "Nobody counts.", ["person", "leading"]),
        (16, "These items are sentences", ["leading"]),
        (17, "A [link](who-is-it.md) is text and goes on.", []),
        (18, words(26), ["long"]),
        (19, words(25), []),
    ]


def test_inline_code_counts_as_one_word() -> None:
    assert read("docs", "`a b c` " + "word " * 24 + "\n") == [(1, "`a b c`" + " word" * 24, [])]


DOCSTRINGS = '''"""Who works. Nobody else."""

class Cache:
    """Cache of crowds.

    What it holds.
    """

    async def stop(self) -> None:
        """Give up
        its seat: it is no longer used."""

    def start(self) -> None: ...
'''


def test_first_sentence_of_each_docstring_is_read() -> None:
    assert read("docstrings", DOCSTRINGS) == [
        (1, "Who works.", ["person", "leading"]),
        (4, "Cache of crowds.", ["private"]),
        (10, "Give up its seat: it is no longer used.", ["private"]),
    ]


ERRORS = """
raise Error(Code.A, f"{name(1)} is no file. Who knows", because="it is gone" if gone else "its disk is full")
raise ToolError("nobody waits", code="that_is_data")
raise Error(Code.B, "the file " + path + " is no longer there", hint=HINT or "use another", size="what")
raise ValueError("who reads this")
"""


def test_messages_reasons_and_hints_of_errors_are_read() -> None:
    assert read("errors", ERRORS) == [
        (2, "{…} is no file.", ["negated"]),
        (2, "Who knows", ["person", "leading"]),
        (2, "it is gone", ["leading"]),
        (2, "its disk is full", ["leading"]),
        (3, "nobody waits", ["person", "leading"]),
        (4, "the file", []),
        (4, "is no longer there", []),
        (4, "use another", []),
    ]


HELP = '''
@app.command("list")
def show(limit: Annotated[int, Option(help="What to show.")]) -> None:
    """List sessions.

    Nobody is asked.
    """

def private() -> None:
    """Who cares."""
'''


def test_help_texts_and_docstrings_of_commands_are_read() -> None:
    assert sorted(read("help", HELP)) == [
        (3, "What to show.", ["leading"]),
        (4, "List sessions.", []),
        (6, "Nobody is asked.", ["person", "leading"]),
    ]


TESTS = """
def test_what_is_left_is_found(): ...
class TestIt:
    async def test_a_b_c_d_e_f_g_h_i_j_k_l_m(self): ...
    def test_a_b_c_d_e_f_g_h_i_j_k_l(self): ...
def who(): ...
"""


def test_names_of_tests_are_read() -> None:
    assert sorted(read("tests", TESTS)) == [
        (2, "test_what_is_left_is_found", ["leading"]),
        (4, "test_a_b_c_d_e_f_g_h_i_j_k_l_m", ["long"]),
        (5, "test_a_b_c_d_e_f_g_h_i_j_k_l", []),
    ]


@pytest.mark.parametrize(
    ("title", "is_decision"),
    [
        ("Consume an approval in the append that starts the call", True),
        ("Process occurrences in the owner of their source", True),
        ("Never presume a worker on another host dead", True),
        ("Skip reads whose result is known", True),
        ("Receipts are derived from the log", False),
        ("Limits in the store", False),
        ("An idle session takes its input in one append", False),
        ("What is known is not read", False),
        ("Effect ids are local to the turn", False),
        ("Sealed into the start record", False),
    ],
)
def test_title_of_decision_begins_with_verb(title: str, is_decision: bool) -> None:
    assert (NO_VERB.match(title) is None) is is_decision


@pytest.mark.parametrize(
    ("subject", "problems"),
    [
        ("Name hosts by what they are", 0),
        ("Add " + "x" * 68, 0),
        ("Add " + "x" * 69, 1),
        ("add a test", 1),
        ("Add a test.", 1),
        ("Tell whoever waits", 1),
        ("What is known is not read", 1),
    ],
)
def test_commit_subject_is_checked(subject: str, problems: int) -> None:
    assert len(subject_problems(f"{subject}\n\nWho reads a body.\n")) == problems


def test_class_name_belongs_to_one_module(tmp_path: Path) -> None:
    files = {"a.py": "class A: ...\nclass B: ...\nclass B: ...", "b.py": "class A: ...\nclass C: ..."}
    write(tmp_path / "src/perdure", files)
    assert {name: [f"{f.path}:{f.line}" for f in found] for name, found in homonyms(tmp_path).items()} == {
        "A": ["src/perdure/a.py:1", "src/perdure/b.py:1"]
    }


CODE = '''"""Old module."""
OLD = 1
class Old(Base, tag="old"):
    """Old."""
    old: int
    def old_method(self, old_parameter: int) -> None:
        self.old_part = old_local = "old.event"
        print(old_local)
def other(old: int) -> None: ...
'''
SCHEMA = """CREATE TABLE old (
    place INTEGER
);
CREATE TABLE perdure.log (
    place INTEGER,
    old_place INTEGER
);
CREATE UNIQUE INDEX old_index ON log (place);
CREATE SEQUENCE perdure.old_sequence;
"""
FILES = {
    "src/perdure/store/new.py": CODE,
    "src/perdure/turn/other.py": CODE,
    "src/perdure/store/sqlite/schema.sql": SCHEMA,
    "src/perdure/cli/app.py": 'app(help="Show an OldClass, by old_name; old ones")',
    "tests/conftest.py": "@pytest.fixture\ndef desk(): ...\ndef test(desk): desk()\ndef plant(): ...",
}
STORE, TURN = "src/perdure/store/new.py", "src/perdure/turn/other.py"
SQL, APP = "src/perdure/store/sqlite/schema.sql", "src/perdure/cli/app.py:1"


@pytest.mark.parametrize(
    ("kind", "where", "old", "found"),
    [
        ("class", "", "Old", [f"{STORE}:3", f"{TURN}:3"]),
        ("class", "store/new.py", "Old", [f"{STORE}:3"]),
        ("class", "store/old.py", "Old", [f"{STORE}:3"]),
        ("class", "{store,turn}/{new,other}.py", "Old", [f"{STORE}:3", f"{TURN}:3"]),
        ("class", "gone.py", "Old", [f"{STORE}:3", f"{TURN}:3"]),
        ("class", "", "Ol", []),
        ("class", "", "old", []),
        ("module", "turn/other.py", "other", [f"{TURN}:1"]),
        ("module", "turn/old.py", "old", []),
        ("function", "turn", "missing, other", [f"{TURN}:9"]),
        ("method", "store protocol", "old_method", [f"{STORE}:6"]),
        ("method", "Other", "old_method", []),
        ("method", "Old", "old_method", [f"{STORE}:6", f"{TURN}:6"]),
        ("field", "turn/other.py", "old", [f"{TURN}:5", f"{TURN}:9"]),
        ("field", "turn/other.py", "Old.old", [f"{TURN}:5"]),
        ("field", "turn/other.py", "old_part", [f"{TURN}:7"]),
        ("field", "turn/other.py", "old_local", []),
        ("constant", "turn/other.py", "OLD", [f"{TURN}:2"]),
        ("property", "Old", "old", [f"{STORE}:5", f"{TURN}:5"]),
        ("parameter", "rt.old_method", "old_parameter", [f"{STORE}:6", f"{TURN}:6"]),
        ("parameter", "@other", "old_parameter", []),
        ("literal", "turn/other.py", "Old, old", [f"{TURN}:3", f"{TURN}:3", f"{TURN}:5", APP]),
        ("record tag", "turn/other.py", "old", [f"{TURN}:3"]),
        ("event", "turn/other.py", "old.event", [f"{TURN}:7"]),
        ("word", "turn/other.py", "part (of a whole)", [f"{TURN}:7"]),
        ("table", "both schemas", "old", [f"{SQL}:1", APP]),
        ("column", "log", "place", [f"{SQL}:5"]),
        ("index", "SQLite", "old_index", [f"{SQL}:8"]),
        ("sequence", "store/sqlite/schema.sql", "perdure.old_sequence", [f"{SQL}:9"]),
        ("fixture", "tests", "desk, plant", ["tests/conftest.py:2"]),
        ("class", "", "OldClass", [APP]),
        ("parameter", "", "old_name", [APP]),
    ],
)
def test_old_name_is_found(tmp_path: Path, kind: str, where: str, old: str, found: list[str]) -> None:
    row = Rename.of({"kind": kind, "where": where, "old": old, "new": "new_name"})
    rows = [row, Rename("module", "store/old.py", ("old",), "new")]
    assert [f"{f.path}:{f.line}" for f in unrenamed(write(tmp_path, FILES), row, rows)] == found


def test_column_of_renamed_table_is_found(tmp_path: Path) -> None:
    rows = [Rename("column", "sent", ("place",), "position"), Rename("table", "both schemas", ("sent",), "log")]
    assert [f.line for f in unrenamed(write(tmp_path, FILES), rows[0], rows)] == [5]


def test_row_counts_once_and_lists_every_place(tmp_path: Path) -> None:
    table = "phase\tkind\twhere\told\tnew\n1\tclass\t\tOld\tNew\n1\tclass\t\tGone\tNew\n"
    found = report(write(tmp_path, FILES | {"dev/renames.tsv": table}))
    assert found.counts["names"] == {"class": 1, "rename": 1, "title": 0}
    assert [str(f) for f in found.findings if f.rule == "rename"] == [
        f"{STORE}:3: rename: class Old → New",
        f"{TURN}:3: rename: class Old → New",
    ]


def test_decision_records_are_no_docs(tmp_path: Path) -> None:
    adr = "docs/contributing/adr/2026-11-x.md"
    found = report(write(tmp_path, {"docs/a.md": "Sentence. Another.", adr: "# What is known\n\nText."}))
    assert (found.sentences["docs"], found.sentences["adr"]) == (2, 1)
    assert [str(f) for f in found.findings] == [f"{adr}:1: title: What is known"]


def test_list_is_limited_to_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(tmp_path, {"docs/a/b.md": ""}) / "docs")
    inside, outside = Finding("docs/a/b.md", 1, "long", "x"), Finding("docs/c.md", 1, "long", "x")
    found = Report([inside, outside], {}, {})
    assert listed(tmp_path, found, ["a"]) == [inside]
    assert listed(tmp_path, found, []) == [inside, outside]


def test_count_that_rises_fails() -> None:
    known = {"docs": {"person": 2, "long": 3}}
    assert risen(known, {"docs": {"person": 3, "long": 1}}) == ["docs: person rose from 2 to 3"]
    assert risen(known, {"docs": {"person": 2, "long": 3}}) == []
    assert risen(known, {"help": {"long": 1}}) == ["help: long rose from 0 to 1"]


def test_numbers_are_lowered_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "prose.json"
    two, one = (Report([], {}, {"docs": {"long": count}}) for count in (2, 1))
    assert judge(two, path, update=True) == []
    assert judge(one, path, update=False) == []
    assert "make prose ARGS=--update" in capsys.readouterr().out
    assert judge(one, path, update=True) == []
    assert judge(two, path, update=False)[0] == "docs: long rose from 1 to 2"


def test_missed_targets_are_named(tmp_path: Path) -> None:
    clean = " Clean." * 99
    files = {"docs/a.md": f"Who waits.{clean}", "README.md": "A word.", "src/perdure/a.py": 'Error(A, "is no b")'}
    assert missed(report(write(tmp_path, files))) == [
        "docs: person is 1.0 %, the target 0.5 %",
        "errors: negated is 1, the target 0",
    ]
