"""Packed batches are what transformers and TRL's ``SFTTrainer`` collate of the same rows."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from optional import need
from taker_cases import (
    IGNORED,
    PAD,
    TOKENS,
    as_tensors,
    draw,
    drawn,
    filled,
    lengths,
    padded,
    padding_free,
    token_rows,
)

from cpprb_like.views import Packed, Padded

torch = need("torch", "make test-integrations")
need("transformers", "make test-integrations")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries, of each other
    from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

pytestmark = pytest.mark.filterwarnings("ignore")
WIDE = {"ids": "i8", "labels": "i8", "T_positions": "i8"}
PACKED = Packed(positions=True, segments=True, dtypes=WIDE)


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """The same names, dtypes, shapes and values."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if torch.is_tensor(expected):
            assert ours[name].dtype == expected.dtype, name
            assert torch.equal(ours[name], expected), name
        else:
            assert type(ours[name]) is type(expected), name
            assert ours[name] == expected, name


def as_examples(rows: list[dict[str, Any]], *names: str) -> list[dict[str, list[int]]]:
    """Rows as the collators take them: lists."""
    spelling = {"ids": "input_ids", "labels": "labels"}
    return [{spelling[name]: row[name].tolist() for name in names} for row in rows]


def flatten(examples: list[dict[str, list[int]]]) -> dict[str, Any]:
    """The batch of transformers' collator."""
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    return dict(collate(examples, return_tensors="pt"))


def sft_collator(**options: Any) -> Any:
    """TRL's collator."""
    need("trl", "make test-integrations")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling  # noqa: PLC0415 (slow)

    return DataCollatorForLanguageModeling(pad_token_id=PAD, **options)


@pytest.mark.parametrize("n", [1, 2, 64])
def test_transformers_collates_the_same(n: int, rng: np.random.Generator) -> None:
    """Element by element, rows of one token among them."""
    rows = token_rows(lengths(100, rng), rng)
    batch = draw(filled(TOKENS, rows).view(PACKED), n)

    theirs = flatten(as_examples(drawn(rows, batch), "ids", "labels"))

    assert_same(padding_free(batch), theirs)


@pytest.mark.parametrize("n", [1, 2, 64])
def test_trl_collates_the_same(n: int, rng: np.random.Generator) -> None:
    """Of ``SFTTrainer`` with ``padding_free=True``."""
    collate = sft_collator(padding_free=True)
    rows = token_rows(lengths(100, rng), rng)
    batch = draw(filled(TOKENS, rows).view(PACKED), n)

    theirs = collate(as_examples(drawn(rows, batch), "ids", "labels"))

    assert_same(padding_free(batch), theirs)


@pytest.mark.parametrize("multiple_of", [1, 16])
def test_trl_pads_the_same(multiple_of: int, rng: np.random.Generator) -> None:
    """Of ``SFTTrainer`` without ``padding_free``."""
    collate = sft_collator(pad_to_multiple_of=multiple_of)
    rows = token_rows(lengths(100, rng), rng)
    layout = Padded(
        value={"ids": PAD, "labels": IGNORED},
        multiple_of=multiple_of,
        dtypes={"ids": "i8", "labels": "i8", "T_mask": "i8"},
    )
    batch = draw(filled(TOKENS, rows).view(layout), 64)

    theirs = collate(as_examples(drawn(rows, batch), "ids", "labels"))
    assert_same(padded(batch), theirs)


def test_labels_that_are_the_tokens(rng: np.random.Generator) -> None:
    """The first token of each row follows on that of another, so it has no label."""
    rows = token_rows(lengths(100, rng), rng)
    batch = draw(filled(TOKENS, rows).view(PACKED), 64)

    batch["labels"] = batch["ids"].clone()
    batch["labels"][batch["T_offsets"][:-1]] = IGNORED

    examples = as_examples(drawn(rows, batch), "ids")
    assert_same(padding_free(batch), flatten(examples))
    assert_same(padding_free(batch), sft_collator(padding_free=True)(examples))


def test_tokens_behind_the_rows_have_no_label(rng: np.random.Generator) -> None:
    """TRL makes a sequence of each token that pads; here they are one segment behind the rows."""
    collate = sft_collator(padding_free=True, pad_to_multiple_of=64)
    rows = token_rows(lengths(100, rng), rng)
    layout = Packed(
        positions=True, dtypes=WIDE, multiple_of=64, value={"ids": PAD, "labels": IGNORED}
    )
    batch = draw(filled(TOKENS, rows).view(layout), 33)
    items = sum(len(row["ids"]) for row in drawn(rows, batch))

    theirs = collate(as_examples(drawn(rows, batch), "ids", "labels"))

    assert torch.equal(batch["ids"], theirs["input_ids"][0])
    assert torch.equal(batch["labels"], theirs["labels"][0])
    assert torch.equal(batch["T_positions"][:items], theirs["position_ids"][0, :items])
    assert torch.equal(batch["T_offsets"][:34], theirs["cu_seq_lens_q"][:34])
    assert batch["T_offsets"][34] == len(batch["ids"]) == -(-items // 64) * 64


def test_empty_rows_keep_their_number(rng: np.random.Generator) -> None:
    """Collators drop empty rows and count on; here a row is the same one in each column."""
    rows = token_rows(lengths(100, rng, least=0, most=2), rng)
    batch = draw(filled(TOKENS, rows).view(PACKED), 64)
    ours = padding_free(batch)

    theirs = flatten(as_examples(drawn(rows, batch), "ids", "labels"))

    for name in ("input_ids", "labels", "position_ids", "max_length_q"):
        assert_same({name: ours[name]}, {name: theirs[name]})
    offsets = ours["cu_seq_lens_q"]
    assert len(offsets) == 65
    assert torch.equal(torch.unique_consecutive(offsets), theirs["cu_seq_lens_q"])
    counts = torch.unique_consecutive(ours["seq_idx"], return_inverse=True)[1]
    assert torch.equal(counts.int(), theirs["seq_idx"])


def test_memory_is_that_of_the_batch(rng: np.random.Generator) -> None:
    """A model reads the arrays that the draw filled."""
    batch = filled(TOKENS, token_rows(lengths(100, rng), rng)).view(PACKED).sample(64)
    names = {"ids": "input_ids", "labels": "labels", "T_positions": "position_ids"}
    names |= {"T_segments": "seq_idx", "T_offsets": "cu_seq_lens_q"}

    ours = padding_free(as_tensors(batch))

    for name, spelling in names.items():
        assert ours[spelling].data_ptr() == batch[name].ctypes.data, name


def test_a_model_keeps_rows_apart(rng: np.random.Generator) -> None:
    """Logits of a row are those of the row alone; with a cache the mask would not ask for rows."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    rows = token_rows(lengths(16, rng), rng)
    (batch,) = filled(TOKENS, rows).view(PACKED).epoch(16, to="torch")
    inputs = padding_free(batch)
    starts = batch["T_offsets"].tolist()

    with torch.no_grad():
        logits = model(**inputs, use_cache=False).logits[0]
        for k, row in enumerate(drawn(rows, batch)):
            alone = model(input_ids=torch.tensor(row["ids"][None])).logits[0]
            torch.testing.assert_close(logits[starts[k] : starts[k + 1]], alone)
