"""Padded batches are those that TRL's ``GRPOTrainer`` makes of the same rollouts."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optional import need
from taker_cases import PAD, ROLLOUTS, Row, as_tensors, filled, grpo, lengths

from cpprb_like.views import Padded

torch = need("torch", "make test-integrations")
need("transformers", "make test-integrations")
need("trl", "make test-integrations")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the libraries, of each other
    from datasets import Dataset  # type: ignore[attr-defined]
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore")
N, VOCABULARY = 8, 32
PADDED = Padded(
    side={"P": "left"},
    value={"prompt": PAD, "completion": PAD},
    dtypes={"prompt": "i8", "completion": "i8", "P_mask": "i8", "C_mask": "i8"},
)


def rollouts(rng: np.random.Generator) -> dict[str, list[list[Any]]]:
    """Tokens of prompts and completions, and the log-probabilities of these, as lists."""
    prompts = [rng.integers(PAD + 1, VOCABULARY, n).tolist() for n in lengths(N, rng, most=9)]
    completions = [rng.integers(PAD + 1, VOCABULARY, n).tolist() for n in lengths(N, rng, most=13)]
    return {
        "prompt_ids": prompts,
        "completion_ids": completions,
        "logprobs": [rng.normal(size=len(ids)).tolist() for ids in completions],
    }


def trainer(folder: Path, made: dict[str, list[list[Any]]]) -> Any:
    """A trainer of a tiny model, whose rollouts are these."""
    words = {f"<{number}>": number for number in range(VOCABULARY)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<1>")),
        pad_token=f"<{PAD}>", eos_token="<1>", unk_token="<1>",
    )  # fmt: skip
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=PAD,
    )  # fmt: skip
    options = GRPOConfig(
        str(folder), per_device_train_batch_size=N, num_generations=4, num_iterations=2,
        report_to=[], use_cpu=True, bf16=False, gradient_checkpointing=False,
    )  # fmt: skip
    torch.manual_seed(0)
    new = GRPOTrainer(
        LlamaForCausalLM(config),
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=options,
        train_dataset=Dataset.from_dict({"prompt": ["<4>"] * N}),
        processing_class=tokenizer,
        rollout_func=lambda prompts, trainer: made,
    )
    new.current_gradient_accumulation_steps = 1  # set by a loop of training
    return new


def to_rows(made: dict[str, list[list[Any]]], theirs: dict[str, Any]) -> list[Row]:
    """Rows to store: lists of tokens, and what the trainer computed of them."""
    return [
        {
            "row": k,
            "prompt": made["prompt_ids"][k],
            "completion": made["completion_ids"][k],
            "old_logp": theirs["old_per_token_logps"][k, : len(made["completion_ids"][k])],
            "logp": made["logprobs"][k],
            "advantage": theirs["advantages"][k],
        }
        for k in range(N)
    ]


@pytest.mark.parametrize("multiple_of", [1, 8])
def test_the_trainer_makes_the_same_batch(
    multiple_of: int, rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tensors and its loss; log-probabilities that it computes of padding are no part of it."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    made = rollouts(rng)
    grpo_trainer = trainer(tmp_path, made)
    grpo_trainer.pad_to_multiple_of = multiple_of
    theirs = grpo_trainer._generate_and_score_completions([{"prompt": "<4>"}] * N)
    rb = filled(ROLLOUTS, to_rows(made, theirs))
    layout = Padded(**{**vars(PADDED), "multiple_of": multiple_of})

    (batch,) = rb.view(layout).epoch(N, to="torch")

    ours, order = grpo(batch), batch["row"]
    expected = {name: value[order] if value.ndim else value for name, value in theirs.items()}
    expected["old_per_token_logps"] *= expected["completion_mask"]
    assert ours.keys() == expected.keys()
    for name, value in expected.items():
        assert ours[name].dtype == value.dtype, name
        assert torch.equal(ours[name], value), name
    model = grpo_trainer.model
    loss = grpo_trainer._compute_loss(model, ours)
    torch.testing.assert_close(loss, grpo_trainer._compute_loss(model, theirs))


def test_memory_is_that_of_the_batch(rng: np.random.Generator) -> None:
    """The loss reads the arrays that the draw filled."""
    rows = [
        {
            "row": k,
            "prompt": rng.integers(0, 9, k),
            "completion": rng.integers(0, 9, k + 1),
            "old_logp": rng.normal(size=k + 1),
            "logp": rng.normal(size=k + 1),
            "advantage": 0.5,
        }
        for k in range(N)
    ]
    batch = filled(ROLLOUTS, rows).view(PADDED).sample(N)

    ours = grpo(as_tensors(batch))

    names = {"prompt": "prompt_ids", "P_mask": "prompt_mask", "completion": "completion_ids"}
    names |= {"C_mask": "completion_mask", "logp": "sampling_per_token_logps"}
    for name, spelling in names.items():
        assert ours[spelling].data_ptr() == batch[name].ctypes.data, name
