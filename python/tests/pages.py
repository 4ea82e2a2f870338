# SPDX-License-Identifier: Apache-2.0
"""What the frameworks of docs/integrations.md need in tests: the page's own code, and a model, a
tokenizer and texts of some words."""

from __future__ import annotations

import pathlib
import re
from typing import List

import torch

WORDS = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(60))]


def code(heading: str, language: str = "python") -> str:
    """The first block of code of a section of docs/integrations.md."""
    page = pathlib.Path(__file__).parents[2] / "docs/integrations.md"
    section = page.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.S)
    assert found, f"{heading} has no block of {language}"
    return found.group(1)


def tokenizer():
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )


def llama(dtype: torch.dtype = torch.bfloat16):
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).to(dtype)


def texts() -> List[str]:
    return [" ".join(f"w{(k * i) % 60}" for i in range(12)) for k in range(16)]
