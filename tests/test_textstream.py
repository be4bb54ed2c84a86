"""Incremental detokenisation: final text only, equal to one decode, at a cost that does not grow."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from clawrl.engine.textstream import TextStream, token_pieces
from tests.tiny_model import build_tiny_model

TEXTS = [
    "naïve café, one “quoted” word…",
    "多语言文本和更多的汉字。没有空格",
    "👩‍👩‍👧‍👦 family, 🙂🙃🙂 flags 🇩🇪🇫🇷 and tone 👍🏽",
    "  leading spaces\n\n\tand tabs  ",
    "a � that the model itself wrote",
]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(build_tiny_model(tmp_path_factory.mktemp("tiny") / "model"))


def _whole(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def _pieces(stream: TextStream, ids: list[int], rng: random.Random, largest: int = 5) -> list[str]:
    pieces, at = [], 0
    while at < len(ids):
        size = rng.randint(1, largest)
        pieces.append(stream.push(ids[at : at + size]))
        at += size
    return [*pieces, stream.finish()]


def _first_complete_stop(text: str, stops: tuple[str, ...]) -> str:
    """The definition, letter by letter: the first stop string to be complete ends the text before itself."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))]
    return text


def _pieced_tokenizer(tokens: list[bytes]) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer whose tokens are exactly these byte strings, however they cut characters."""
    byte_chars = _byte_alphabet()
    vocab = {"".join(byte_chars[b] for b in token): i for i, token in enumerate(tokens)}
    raw = Tokenizer(models.WordLevel(vocab | {"<unk>": len(vocab)}, unk_token="<unk>"))
    raw.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")


def _byte_alphabet() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def test_pieces_of_random_ids_join_to_one_decode_for_any_chunking(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(0)
    for _ in range(400):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randint(0, 120))]
        pieces = _pieces(TextStream(tokenizer), ids, rng, largest=rng.choice([1, 3, 40]))
        assert "".join(pieces) == _whole(tokenizer, ids)


@pytest.mark.parametrize("text", TEXTS)
def test_text_streamed_token_by_token_holds_whole_characters_only(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    ids = tokenizer.encode(text * 20)
    stream = TextStream(tokenizer)
    pieces = [stream.push([i]) for i in ids] + [stream.finish()]
    assert "".join(pieces) == text * 20
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_text_leaves_with_its_own_token_when_nothing_can_change_it(tokenizer: PreTrainedTokenizerFast) -> None:
    stream = TextStream(tokenizer, stop=("\n\n",))
    for token_id in tokenizer.encode("plants are green and they grow"):
        assert stream.push([token_id]) == tokenizer.decode([token_id])


def test_a_character_cut_by_tokens_waits_until_it_is_whole(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("😀")
    assert len(ids) > 1
    stream = TextStream(tokenizer)
    assert [stream.push([i]) for i in ids] == [""] * (len(ids) - 1) + ["😀"]


def test_a_character_that_never_becomes_whole_comes_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("ok😀")[:-1]
    stream = TextStream(tokenizer)
    assert stream.push(ids) == "ok"
    assert stream.finish() == _whole(tokenizer, ids)[2:] == "\ufffd"


def test_special_tokens_never_appear(tokenizer: PreTrainedTokenizerFast) -> None:
    end, start = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>"])
    halves = tokenizer.encode("😀")
    ids = [start, *tokenizer.encode("good"), end, *halves[:2], end, *halves[2:], end]
    stream = TextStream(tokenizer)
    assert "".join(stream.push([i]) for i in ids) + stream.finish() == "good😀"


def _tokenizer_with_marks() -> tuple[PreTrainedTokenizerFast, int, list[int]]:
    """Byte-level, with a mark to keep and special tokens to leave out, one of which has no name of its own."""
    byte_chars = _byte_alphabet()
    words = [bytes([b]) for b in "语🙂".encode()] + [b"good", b" bad", b" "]
    vocab = {"".join(byte_chars[b] for b in word): i for i, word in enumerate(dict.fromkeys(words))}
    raw = Tokenizer(models.WordLevel(vocab | {"<unk>": len(vocab)}, unk_token="<unk>"))
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(text, special=True) for text in ("<mark>", "<end>", "<reserved>")])
    pieced = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="<end>")
    mark, end, reserved = pieced.convert_tokens_to_ids(["<mark>", "<end>", "<reserved>"])
    return pieced, mark, [end, reserved, pieced.unk_token_id]


def test_special_tokens_to_keep_are_text_like_any_other() -> None:
    pieced, mark, silent = _tokenizer_with_marks()
    assert silent[1] not in pieced.all_special_ids
    rng = random.Random(5)
    for _ in range(300):
        ids = [rng.randrange(len(pieced)) for _ in range(rng.randint(0, 120))]
        told = [i for i in ids if i not in silent]
        want = pieced.decode(told, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert want.count("<mark>") == ids.count(mark)
        stream = TextStream(pieced, keep=frozenset([mark]))
        assert "".join(_pieces(stream, ids, rng, largest=rng.choice([1, 3, 40]))) == want


def test_a_token_to_keep_leaves_at_once_and_may_be_part_of_a_stop_string() -> None:
    pieced, mark, silent = _tokenizer_with_marks()
    good, bad = (next(i for i in range(len(pieced)) if pieced.decode([i]) == word) for word in ("good", " bad"))
    stream = TextStream(pieced, stop=("<mark> bad",), keep=frozenset([mark]))
    assert [stream.push([i]) for i in (mark, silent[0], good, mark, bad, good)] == ["", "", "<mark>good", "", "", ""]
    assert stream.stopped
    assert TextStream(pieced, keep=frozenset([mark])).push([mark]) == "<mark>"
    assert TextStream(pieced).push([mark, good]) == "good"


def test_ids_beyond_the_vocabulary_have_no_text(tokenizer: PreTrainedTokenizerFast) -> None:
    stream = TextStream(tokenizer)
    assert stream.push([*tokenizer.encode("good"), len(tokenizer) + 7]) + stream.finish() == "good"


def test_random_stop_strings_cut_the_text_where_the_first_is_complete(tokenizer: PreTrainedTokenizerFast) -> None:
    rng = random.Random(1)
    cut = 0
    for _ in range(600):
        text = "".join(rng.choice(["a", "b", "ab", "ba", "语", "🙂", " good", "."]) for _ in range(40))
        stops = []
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text))
            stops.append(text[at : at + rng.randint(1, 6)] + rng.choice(["", "", "x"]))
        ids = tokenizer.encode(text)
        stream = TextStream(tokenizer, tuple(stops))
        want = _first_complete_stop(text, tuple(stops))
        assert "".join(_pieces(stream, ids, rng, largest=rng.choice([1, 4, 60]))) == want
        assert stream.stopped == (want != text)
        cut += stream.stopped
    assert 100 < cut < 600


def test_a_stop_string_that_straddles_tokens_ends_the_text_before_it(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = tokenizer.encode("that is good. Verdict: bad")
    stream = TextStream(tokenizer, stop=("od. Ver",))
    pieces = [stream.push([i]) for i in ids]
    assert "".join(pieces) == "that is go"
    assert stream.stopped
    assert stream.push(ids) == "" and stream.finish() == ""


def test_the_beginning_of_a_stop_string_is_held_and_comes_at_the_end(tokenizer: PreTrainedTokenizerFast) -> None:
    stream = TextStream(tokenizer, stop=("END",))
    assert stream.push(tokenizer.encode("the EN")) == "the "
    assert stream.finish() == "EN"
    assert not stream.stopped


def test_a_stop_string_completed_by_an_unfinished_character_is_found_at_the_end(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    stream = TextStream(tokenizer, stop=("k\ufffd",))
    assert stream.push(tokenizer.encode("ok😀")[:-1]) == "o"
    assert stream.finish() == "" and stream.stopped


def test_an_empty_stop_string_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ValueError, match="empty"):
        TextStream(tokenizer, stop=("",))


def test_tokens_that_cut_every_character_still_join_to_one_decode() -> None:
    euro = "€".encode()
    awkward = _pieced_tokenizer([euro[:1], euro[1:] + euro[:1], euro[2:] + euro[:2], euro[1:], b"\x80", b"\xf0", b"a"])
    rng = random.Random(2)
    for _ in range(200):
        ids = [rng.randrange(7) for _ in range(rng.randint(0, 300))]
        assert "".join(_pieces(TextStream(awkward), ids, rng)) == _whole(awkward, ids)
    assert "".join(_pieces(TextStream(awkward), [0, *[1] * 500, 3], rng)) == "€" * 501


def test_a_sentencepiece_tokenizer_keeps_its_spaces_and_byte_tokens() -> None:
    words = ["▁good", "▁bad", "ish", "▁", *[f"<0x{b:02X}>" for b in "🙂语".encode()]]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*words, "<unk>", "</s>"])}, unk_token="<unk>"))
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieced = PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>", eos_token="</s>")
    eos = pieced.eos_token_id
    rng = random.Random(3)
    units = [[0], [1], [2], [3], [4, 5, 6, 7], [8, 9, 10], [eos]]
    for _ in range(200):
        ids = [i for _ in range(rng.randint(0, 80)) for i in rng.choice(units)]
        assert "".join(_pieces(TextStream(pieced), ids, rng)) == _whole(pieced, ids)
        run = [i for _ in range(rng.randint(0, 80)) for i in rng.choice(units[4:6])]
        assert "".join(_pieces(TextStream(pieced), run, rng)) == _whole(pieced, run)


@pytest.mark.parametrize("kind", ["words", "emoji", "one wrong byte", "random", "special"])
def test_the_ids_decoded_for_one_token_do_not_grow_with_the_answer(
    tokenizer: PreTrainedTokenizerFast, kind: str
) -> None:
    class Counting:
        all_special_ids = tokenizer.all_special_ids
        longest = 0

        def decode(self, ids: list[int], **kwargs: Any) -> str:
            self.longest = max(self.longest, len(ids))
            return tokenizer.decode(ids, **kwargs)

        def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> Any:
            return tokenizer.convert_ids_to_tokens(ids)

    rng = random.Random(4)
    ids = {
        "words": tokenizer.encode("plants are green and they grow in the rain. " * 300),
        "emoji": tokenizer.encode("😀" * 700),
        "one wrong byte": tokenizer.encode("😀")[-1:] * 3000,
        "random": [rng.randrange(len(tokenizer)) for _ in range(3000)],
        "special": [tokenizer.eos_token_id] * 3000,
    }[kind]
    counting = Counting()
    stream = TextStream(counting)
    assert "".join(stream.push([i]) for i in ids) + stream.finish() == _whole(tokenizer, ids)
    assert counting.longest <= 64


def test_spaces_before_punctuation_are_kept_even_if_the_tokenizer_would_clean_them_up(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces", True)
    monkeypatch.setattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", True)
    assert tokenizer.decode(tokenizer.encode("a ,")) == "a,"
    stream = TextStream(tokenizer)
    pieces = [stream.push([i]) for i in tokenizer.encode("spaces , and . dots")]
    assert "".join(pieces) + stream.finish() == "spaces , and . dots"


@pytest.mark.parametrize("text", TEXTS)
def test_every_token_has_its_text_and_all_of_them_together_the_whole_special_ones_included(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    pieces = token_pieces(tokenizer, ids)
    assert len(pieces) == len(ids) and pieces[-1].endswith(tokenizer.eos_token)
    assert "".join(pieces) == tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    assert token_pieces(tokenizer, []) == []
