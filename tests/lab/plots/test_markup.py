"""Text cannot become markup."""

from l0arm.lab.plots.markup import Markup, joined, tag


def test_text_and_attributes_are_escaped() -> None:
    made = tag("p", "<script>&", title='"><b>').text
    assert made == '<p title="&quot;&gt;&lt;b&gt;">&lt;script&gt;&amp;</p>'


def test_markup_is_written_as_it_is() -> None:
    assert tag("p", tag("b", "a"), " < ", Markup("<i>b</i>")).text == (
        "<p><b>a</b> &lt; <i>b</i></p>"
    )
    assert joined("a<", Markup("<br>")).text == "a&lt;<br>"


def test_elements_without_content_are_not_closed() -> None:
    assert tag("img", alt="x").text == '<img alt="x">'


def test_names_of_attributes_may_be_words_of_python() -> None:
    assert tag("i", class_="a", aria_hidden="true").text == '<i class="a" aria-hidden="true"></i>'
