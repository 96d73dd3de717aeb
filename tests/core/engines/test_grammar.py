"""Which tokens a grammar allows next, with the tiny model's tokenizer: one token for each byte."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from art_core.engines import grammar as grammar_module
from art_core.engines.grammar import Grammars, Matcher
from art_core.errors import ConfigError, DataError, MissingExtraError
from art_core.render.grammars import json_object_grammar, json_schema_grammar, regex_grammar
from art_core.render.tokenizer import TextTokenizer
from art_core.testing import write_tiny_model

V = 259
END = 2
SPECIAL = {0, 1, 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def grammars(folder: Path) -> Grammars:
    return Grammars(folder, V)


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    return TextTokenizer.from_file(folder / "tokenizer.json")


class Follow:
    """A matcher that is fed text."""

    def __init__(self, grammars: Grammars, tokenizer: TextTokenizer, grammar: str, stops: Sequence[int] = (END,)):
        self.matcher: Matcher = grammars.matcher(grammar, stops)
        self._tokenizer = tokenizer

    def accepts(self, text: str) -> bool:
        """Go on by `text`; False where a token of it is not allowed, from where on nothing more can be asked."""
        for token in self._tokenizer.encode(text):
            if not self.matcher.allowed[token]:
                return False
            self.matcher.advance(token)
        return True

    @property
    def ids(self) -> set[int]:
        return set(self.matcher.allowed.nonzero()[0].tolist())

    @property
    def letters(self) -> str:
        """What may come next, in order of ids; `$` for the end."""
        return "".join("$" if token == END else self._tokenizer.decode([token]) for token in sorted(self.ids))


def test_allowed_is_what_keeps_the_grammar_satisfiable_and_the_end_where_it_is_satisfied(
    grammars: Grammars, tokenizer: TextTokenizer
) -> None:
    follow = Follow(grammars, tokenizer, 'start: "a" ("b" | "c")*')
    assert follow.letters == "a"
    assert follow.accepts("a")
    assert follow.letters == "$bc"
    assert follow.accepts("cb")
    assert follow.letters == "$bc"


def test_where_nothing_can_follow_only_stop_tokens_are_left(grammars: Grammars, tokenizer: TextTokenizer) -> None:
    follow = Follow(grammars, tokenizer, 'start: "ab"', stops=(END, 0, 999, -1))
    assert follow.accepts("ab")
    assert follow.ids == {0, END}  # ids that the model does not have are no stop tokens


def test_a_stop_token_with_a_text_is_barred_until_the_grammar_is_satisfied(
    grammars: Grammars, tokenizer: TextTokenizer
) -> None:
    [b] = tokenizer.encode("b")
    follow = Follow(grammars, tokenizer, "start: /a[bc]+/", stops=(b,))
    assert follow.accepts("a")
    assert follow.letters == "c"
    assert follow.accepts("c")
    assert follow.letters == "bc"


def test_a_grammar_that_no_token_continues_is_an_error_of_its_own(grammars: Grammars, tokenizer: TextTokenizer) -> None:
    [b] = tokenizer.encode("b")
    follow = Follow(grammars, tokenizer, 'start: "ab"', stops=(b,))
    with pytest.raises(DataError, match="no token of this model continues it"):
        follow.accepts("a")
    with pytest.raises(DataError, match="no token of this model continues it"):
        grammars.matcher('start: "b"', (b,))


def test_a_grammar_that_grows_too_complex_is_an_error_of_its_own(
    folder: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import llguidance

    limits = llguidance.LLParserLimits(verbose_errors=False, max_lexer_states=40)
    monkeypatch.setattr(llguidance, "LLParserLimits", lambda **_: limits)
    follow = Follow(Grammars(folder, V), tokenizer, "start: /(a|b)*a(a|b){12}/")
    with pytest.raises(DataError, match=r"cannot be followed any further: .*states.*less repetition"):
        follow.accepts("ab" * 50 + "aab" * 50)


def test_without_a_stop_token_a_grammar_is_refused(grammars: Grammars) -> None:
    for stops in ((), (259,), (-1, 1000)):
        with pytest.raises(ConfigError, match=r"none of which the model has; wanted at least one"):
            grammars.matcher('start: "a"', stops)


def test_two_completions_of_one_grammar_do_not_touch_each_other(grammars: Grammars, tokenizer: TextTokenizer) -> None:
    first, second = (Follow(grammars, tokenizer, 'start: "ab"') for _ in range(2))
    assert first.accepts("a")
    assert (first.letters, second.letters) == ("b", "a")
    assert Follow(grammars, tokenizer, 'start: "ab"').letters == "a"


def test_only_the_latest_grammars_are_kept_compiled(
    folder: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_module, "_MAX_COMPILED", 2)
    grammars, compiled = Grammars(folder, V), []
    compile_one = grammars._compile
    monkeypatch.setattr(grammars, "_compile", lambda text: compiled.append(text) or compile_one(text))  # type: ignore[func-returns-value]
    a, b, c = ('start: "a"', 'start: "b"', 'start: "c"')
    for text in (a, b, a, c, a, b):
        grammars.matcher(text, (END,))
    assert compiled == [a, b, c, b]


@pytest.mark.parametrize("vocab_size", [300, 100])
def test_embeddings_without_a_token_are_never_allowed_and_tokens_without_an_embedding_cannot_be(
    folder: Path, tokenizer: TextTokenizer, vocab_size: int
) -> None:
    follow = Follow(Grammars(folder, vocab_size), tokenizer, regex_grammar("(?s:.)*"))
    assert follow.matcher.allowed.shape == (vocab_size,)
    assert follow.ids <= set(range(min(vocab_size, V))) - SPECIAL | {END}
    assert len(follow.ids) > 80


def test_special_tokens_are_no_text_but_can_be_named(grammars: Grammars, tokenizer: TextTokenizer) -> None:
    follow = Follow(grammars, tokenizer, 'start: "a" <|im_start|>')
    assert follow.accepts("a")
    assert follow.ids == {1}


TRICKY = ("", "x", "<|im_end|>", "<|im_start|>", 'quote " and \\ back', "new\nline\t\x00", "über 🎉", "}]", "</s>", "/")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
@given(st.dictionaries(st.text(max_size=8) | st.sampled_from(TRICKY), st.text() | st.sampled_from(TRICKY), max_size=3))
@example(dict.fromkeys(TRICKY, "<|im_end|>"))
def test_inside_json_no_special_token_is_allowed_before_the_end_whatever_the_strings_spell(
    grammars: Grammars, tokenizer: TextTokenizer, value: dict[str, str]
) -> None:
    follow = Follow(grammars, tokenizer, json_object_grammar())
    # Control characters are escaped, others may not be.
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    for token in tokenizer.encode(text):
        assert not follow.ids & SPECIAL
        assert follow.matcher.allowed[token], text
        follow.matcher.advance(token)
    assert follow.ids == {END}


@pytest.mark.parametrize(
    "text", ['{"a":[1,2]}', '{"a": [1, 2]}', '{\n  "a": [\n    1,\n    2\n  ]\n}', '{ "a" : [ ] }']
)
def test_compact_spaced_and_indented_json_are_allowed(grammars: Grammars, tokenizer: TextTokenizer, text: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}}
    follow = Follow(grammars, tokenizer, json_schema_grammar(schema))
    assert follow.accepts(text)
    assert follow.letters == "$"


@pytest.mark.parametrize(
    ("text", "then"), [("{ ", '"}'), ("{\n" + " " * 15, '"} '), ("{\n" + " " * 16, '"}'), ('{"a" ', ":"), ("{}", "$")]
)
def test_whitespace_between_tokens_of_json_is_bounded(
    grammars: Grammars, tokenizer: TextTokenizer, text: str, then: str
) -> None:
    follow = Follow(grammars, tokenizer, json_object_grammar())
    assert follow.accepts(text)
    allowed = follow.letters
    assert allowed == then


@pytest.mark.parametrize("text", [" ", "\n", "\t", "[", '"'])
def test_an_object_begins_with_its_brace(grammars: Grammars, tokenizer: TextTokenizer, text: str) -> None:
    assert not Follow(grammars, tokenizer, json_object_grammar()).accepts(text)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("a/b", "a/b"),
        (r"a\/b", "a/b"),
        (r"a\\/b", r"a\/b"),
        ("a\nb", "a\nb"),
        (r"\d{2}", "42"),
        ("#x", "#x"),
        ('"', '"'),
    ],
)
def test_a_pattern_matches_the_whole_of_what_it_says(
    grammars: Grammars, tokenizer: TextTokenizer, pattern: str, text: str
) -> None:
    follow = Follow(grammars, tokenizer, regex_grammar(pattern))
    assert follow.accepts(text)
    assert follow.letters == "$"


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("start: foo", 'unknown name: "foo"'),
        ("", "Empty grammar"),
        ("start: (", "cannot be used"),
        (regex_grammar("(?=a)b"), "look-around"),
        (json_schema_grammar({"type": "thing"}), "Invalid type: thing"),
        (json_schema_grammar({"not": {}}), r'Unimplemented keys: \["not"\]'),
        (json_schema_grammar({"type": "array", "uniqueItems": True}), r'Unimplemented keys: \["uniqueItems"\]'),
        (json_schema_grammar({"$ref": "http://example.org/x"}), "example.org"),
        (json_schema_grammar({"$ref": "#/$defs/none"}), "none"),
        (json_schema_grammar({"type": "string", "format": "zork"}), "Unknown format: zork"),
        (json_schema_grammar({"type": "integer", "minimum": 3, "maximum": 1}), "Unsatisfiable schema"),
    ],
)
def test_a_grammar_that_cannot_be_used_says_why_on_one_line(grammars: Grammars, grammar: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        grammars.matcher(grammar, (END,))
    assert "\n" not in str(caught.value)
    assert "%json" not in str(caught.value)


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json does not exist"):
        Grammars(tmp_path, V).matcher('start: "a"', (END,))


def test_a_tokenizer_that_does_not_work_on_bytes_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(
        ConfigError, match=r"grammars do not work with the tokenizer in .*wanted one that works on bytes"
    ):
        Grammars(tmp_path, 2).matcher('start: "a"', (1,))


def test_a_missing_library_is_named_with_the_line_that_installs_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "llguidance", missing)
    with pytest.raises(MissingExtraError, match=r"'llguidance'.*pip install 'art-core\[train\]'"):
        Grammars(folder, V).matcher('start: "a"', (END,))
