"""What people see of a stage's result."""

import pytest

from etl.stages.summary import Summary


@pytest.mark.parametrize(
    ("text", "shown"),
    [("[/x]", "[/x]"), ("[red]apple", "[red]apple"), (":smile:", ":smile:"), ("a\n\x1b[2Jb", r"a\n\x1b[2Jb")],
)
@pytest.mark.parametrize("brief", [(), ("classes",)])
def test_texts_of_the_source_are_shown_as_they_are(
    text: str, shown: str, brief: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    tables = [(text, [text], [[text, {text: 1}]])] if text.isprintable() else []
    Summary("ingest", f"d/{text}", False, {"classes": {text: 6}}, tables, brief).show(as_json=False)
    output = capsys.readouterr().out
    assert output.count(shown) == 2 + 4 * (bool(tables) and not brief)
