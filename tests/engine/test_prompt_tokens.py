"""Which characters of a rendered prompt are the template's own, and the ids of a prompt whose callers spell control tokens."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.tiny_policy import TOOLS, tiny_folder
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from hud.engine.chat.chat_format import ChatFormat
from hud.engine.chat.chat_template import ChatTemplate
from hud.engine.chat.prompt_tokens import PromptTokenizer
from hud.engine.chat.template_text import TemplateText, joined
from hud.engine.config import DecoderConfig
from hud.errors import UsageError

OWN, TOLD = st.text("AB <|>", max_size=6), st.text("ab <|>", max_size=6)
PIECES = st.lists(st.one_of(OWN.map(TemplateText.literal), TOLD), max_size=8)


def shown(text):
    """Return text with the template's own characters in brackets."""
    pieces, at = [], 0
    for start, end in text.own:
        pieces += [str(text[at:start]), f"[{text[start:end]!s}]"]
        at = end
    return "".join([*pieces, str(text[at:])])


def marked(text):
    """Return which characters are the template's own, one flag for each."""
    flags = [False] * len(text)
    for start, end in text.own:
        flags[start:end] = [True] * (end - start)
    return flags


@pytest.mark.slow
@given(PIECES)
def test_a_sum_knows_whose_each_character_is(pieces):
    whole = joined(pieces)
    assert whole == "".join(pieces)
    flags = [type(piece) is TemplateText for piece in pieces for _ in piece]
    assert marked(whole) == flags
    assert all(start < end for start, end in whole.own)
    assert all(
        first[1] < second[0] for first, second in zip(whole.own, whole.own[1:], strict=False)
    )
    one_by_one = TemplateText()
    for piece in pieces:
        one_by_one += piece
    assert (one_by_one, one_by_one.own) == (whole, whole.own)
    assert "".join(whole.caller_pieces()) == "".join(
        character for character, own in zip(whole, flags, strict=True) if not own
    )


@given(PIECES, st.integers(-9, 30), st.integers(-9, 30), st.sampled_from([None, " ", "<A"]))
def test_slices_and_strips_keep_whose_each_character_is(pieces, start, end, chars):
    whole = joined(pieces)
    pairs = list(zip(whole, marked(whole), strict=True))
    assert list(zip(whole[start:end], marked(whole[start:end]), strict=True)) == pairs[start:end]
    plain = str.__str__(whole)
    for name in ("strip", "lstrip", "rstrip"):
        stripped = getattr(whole, name)(chars)
        assert stripped == getattr(plain, name)(chars)
        kept = marked(stripped)
        left = len(plain) - len(plain.lstrip(chars)) if name != "rstrip" else 0
        assert kept == marked(whole)[left : left + len(stripped)]


@pytest.mark.slow
@given(PIECES)
def test_what_templates_seldom_do_loses_the_mark_and_never_makes_one(pieces):
    whole = joined(pieces)
    for made in (
        whole.lower(),
        whole * 2,
        whole.replace("a", "A"),
        "%s" % whole,  # noqa: UP031 - templates have it
        *whole.split("A"),
        whole[::-1],
    ):
        assert made is whole or not getattr(made, "own", ())


WRITTEN = {
    "{{ '<|' ~ role ~ '|>' }}{{ x }}": "[<|]user[|>]evil",
    "{{ '<' + x + '>' + x }}": "[<]evil[>]evil",
    "{% macro m(t) %}<m>{{ t }}</m>{% endmacro %}{{ m(x) | trim }}": "[<m>]evil[</m>]",
    "{% set y %} <a>{{ x }} {% endset %}{{ y | trim }}!": "[<a>]evil[!]",
    "{{ ['<a>', x, '<b>'] | join('-') }}": "[<a>-]evil[-<b>]",
    "{{ {'k': '<a>'}['k'] }}{{ {'k': x}['k'] }}": "[<a>]evil",
    "{% set ns = namespace(t='<a>') %}{{ ns.t if x else '' }}": "[<a>]",
    "{{ x | replace('evil', '<a>') }}{{ x | tojson }}": '<a>"evil"',
    "{{ '<a>%s' | format(x) }}{{ '<b>' | upper }}": "<a>evil<B>",
    "{{ '<a>' + (x | safe) + '<b>' }}": "[&lt;a&gt;]evil[&lt;b&gt;]",
    "{{ '<|safe' | safe + x + '|>' }}{{ '[A]' + (x | tojson | safe) }}": '<|safeevil[|&gt;[A]]"evil"',
    "{{ 1 + 2 }}{{ x if x == 'evil' and 'ev' in x else '<a>' }}": "3evil",
}


@pytest.mark.parametrize("template", WRITTEN)
def test_the_templates_own_text_is_what_stands_in_its_source(template):
    written = ChatTemplate(template, Path("model")).render(x="evil", role="user")
    assert shown(written) == WRITTEN[template]


def chat_with(tmp_path, template, tokenizer=None):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((tiny_folder() / name).read_bytes())
    if tokenizer is not None:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "chat_template.jinja").write_text(template)
    return ChatFormat(tmp_path, DecoderConfig.from_folder(tiny_folder()))


@pytest.mark.parametrize(
    "texts",
    [["<|end", ""], ["", "|end|>"], ["<|e", "nd|>"], ["x<|end|>", "<|"], ["<|end|><|end|", "nd|>"]],
)
def test_a_token_is_not_put_together_from_a_callers_text_and_the_templates(tmp_path, texts):
    template = "<{{ messages[0].content }}|>{{ messages[1].content }}<|end|>"
    chat = chat_with(tmp_path, template)
    ids = chat.render([{"role": "user", "content": text} for text in texts], [])
    assert ids.count(chat.end_id) == 1
    assert ids[-1] == chat.end_id
    assert chat.decode([*ids, 0]) == f"<{texts[0]}|>{texts[1]}<|end|>"


def test_a_templates_token_may_be_put_together_from_a_role(tmp_path):
    template = "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}<|end|>{% endfor %}"
    chat = chat_with(tmp_path, template)
    user = chat.tokenizer.token_to_id("<|user|>")
    assert chat.render([{"role": "user", "content": "<|user|>"}], []).count(user) == 1
    odd = [{"role": "user|><|user", "content": "hi"}]
    assert user not in chat.render(odd, [])


def test_raw_text_of_completions_may_hold_every_token(tmp_path):
    chat = chat_with(tmp_path, "{{ messages[0].content }}<|end|>")
    assert chat.encode("a<|end|>")[-1] == chat.end_id


def test_half_of_a_surrogate_pair_is_refused_in_a_sentence(tmp_path):
    chat = chat_with(tmp_path, "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    with pytest.raises(UsageError, match=r"holds '\\ud83d', a surrogate without its other half"):
        chat.render([{"role": "user", "content": "look \ud83d"}], TOOLS)


def test_a_tokenizer_that_asks_to_cut_prompts_does_not(tmp_path):
    tokenizer = Tokenizer.from_file(str(tiny_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=16)
    chat = chat_with(tmp_path, "{{ messages[0].content }}<|end|>", tokenizer)
    ids = chat.render([{"role": "user", "content": "look at item 3 of all apples"}], [])
    assert chat.decode(ids) == "look at item 3 of all apples"


def sentencepiece(*, scheme):
    """A vocabulary in the manner of SentencePiece: spaces are characters, and text may begin with one."""
    vocabulary = {token: place for place, token in enumerate(["<unk>", "<s>", "</s>", "▁"])}
    for character in "abcdefghijklmnopqrstuvwxyz<>/|":
        vocabulary[character] = len(vocabulary)
    vocabulary["▁a"], vocabulary["ab"] = len(vocabulary), len(vocabulary) + 1
    tokenizer = Tokenizer(models.BPE(vocabulary, [("▁", "a"), ("a", "b")], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    # In the manner of Phi: what follows the token loses its spaces.
    tokenizer.add_special_tokens([AddedToken("<|end|>", rstrip=True, normalized=False)])
    return tokenizer


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
@pytest.mark.parametrize("told", ["ab a", " ab", "ab  </s> a", "<s>", "</s></s>a", " <|end|> b"])
def test_ids_are_those_of_a_tokenizer_without_the_tokens_that_callers_spell(scheme, told):
    tokenizer = sentencepiece(scheme=scheme)
    text = joined(
        [TemplateText.literal("<s>"), told, TemplateText.literal("<|end|>"), "  ab", told]
    )
    if not any(token in told for token in ("<s>", "</s>", "<|end|>")):
        whole = tokenizer.encode(text, add_special_tokens=False).ids
        assert PromptTokenizer(tokenizer, "").encode(text) == whole
    # The same vocabulary without added tokens, but for two that stand for those of the template.
    bare = Tokenizer(tokenizer.model)
    bare.normalizer, bare.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    bare.add_special_tokens([AddedToken("①", normalized=False)])
    bare.add_special_tokens([AddedToken("②", rstrip=True, normalized=False)])
    names = {
        bare.token_to_id("①"): tokenizer.token_to_id("<s>"),
        bare.token_to_id("②"): tokenizer.token_to_id("<|end|>"),
    }
    plain = bare.encode(f"①{told}②  ab{told}", add_special_tokens=False).ids
    expected = [names.get(token, token) for token in plain]
    assert PromptTokenizer(tokenizer, "").encode(text) == expected


def test_a_vocabulary_that_holds_the_spelling_as_one_piece_does_not_bring_it_back():
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((character, -5.0) for character in "ab</s>")]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, False))
    tokenizer.add_special_tokens(["</s>"])
    text = joined(["a</s>b", TemplateText.literal("</s>")])
    ids = PromptTokenizer(tokenizer, "").encode(text)
    end = tokenizer.token_to_id("</s>")
    assert ids.count(end) == 1
    assert ids[-1] == end
    assert tokenizer.decode(ids, skip_special_tokens=False).replace(" ", "") == "a</s>b</s>"


def test_a_vocabulary_with_gaps_in_its_ids_keeps_them():
    vocabulary = {character: 3 * place for place, character in enumerate("ab<|end>")}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])
    text = joined(["a<|end|>b", TemplateText.literal("<|end|>")])
    expected = [vocabulary[character] for character in "a<|end|>b"]
    assert PromptTokenizer(tokenizer, "").encode(text) == [
        *expected,
        tokenizer.token_to_id("<|end|>"),
    ]
