from perdure.tools.docstring import explain


def test_no_docstring_explains_nothing() -> None:
    assert explain(None).description == ""
    assert explain("  \n ").arguments == {}


def test_text_before_the_first_section_is_the_description() -> None:
    doc = """One line.

        A second paragraph: with a colon.

        Raises:
            ToolError: sometimes.
        """
    assert explain(doc).description == "One line.\n\nA second paragraph: with a colon."
    assert explain(doc).arguments == {}


def test_a_line_that_only_looks_like_a_heading_is_text() -> None:
    assert explain("Do this:\nand that").description == "Do this:\nand that"


def test_arguments_may_have_types_stars_and_many_lines() -> None:
    doc = """X.

    Args:
        one (int, optional): First: really
            and more.
        **two: Second.

            After a gap.
        three:
            On its own line.
    Returns:
        four: not an argument
    """
    assert explain(doc).arguments == {
        "one": "First: really and more.",
        "two": "Second. After a gap.",
        "three": "On its own line.",
    }


def test_an_arguments_section_that_is_a_mess_does_no_harm() -> None:
    assert explain("X.\n\nArgs:\n    just words\n  x: y").arguments == {"x": "y"}
    assert explain("Args:\n").arguments == {}
