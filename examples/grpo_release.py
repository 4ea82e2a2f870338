#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning with TRL's GRPOTrainer: the model generates between steps, and hocket's GPU
memory is free while it does.

    python examples/grpo_release.py --model DIR --prompts PROMPTS.txt --out runs/mine
    python examples/grpo_release.py --random --out runs/toy --steps 4

The optimizer state lies in host memory all the time, so no phase has to offload it. What the engine
holds on the GPU besides (staging buffers, weights that wait for the norm) is given back after each
step and taken again at the next gradient; state that gpu_memory= keeps there stays. A folder given
with --model holds a model and its tokenizer as save_pretrained writes them. With --random a Llama
starts from random weights, and is rewarded for words that differ. Needs trl 1.16.
"""

from __future__ import annotations

import argparse
from typing import Any, List, Tuple

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer

import hocket


class Release(TrainerCallback):
    """Gives hocket's GPU memory back at the end of each step.

    Attributes:
        bytes: what was given back, of each step.
    """

    def __init__(self) -> None:
        self.bytes: List[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        opt = kwargs["optimizer"].optimizer  # accelerate has wrapped it
        self.bytes.append(opt.release_gpu())


def different_words(completions: List[str], **_: Any) -> List[float]:
    """The reward: how many words of a completion differ."""
    return [float(len(set(text.split()))) for text in completions]


def toy() -> Tuple[Any, Any]:
    """A Llama with random weights, and a tokenizer of 64 words."""
    words = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{n}" for n in range(60))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokens = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(torch.bfloat16), tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="a folder written by save_pretrained")
    source.add_argument("--random", action="store_true", help="random weights, 64 words")
    parser.add_argument("--prompts", help="a text file, one prompt a line")
    parser.add_argument("--out", required=True, help="folder for checkpoints")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--generations", type=int, default=4, help="completions of a prompt")
    parser.add_argument("--length", type=int, default=8, help="most tokens of a completion")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--overlap", choices=("none", "forward", "both"), default="both")
    parser.add_argument("--keep", action="store_true", help="give no memory back")
    args = parser.parse_args()

    if args.random:
        model, tokenizer = toy()
    else:
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.bfloat16)
        tokenizer = AutoTokenizer.from_pretrained(args.model)
    prompts = [f"w{n} w{n + 1}" for n in range(32)]
    if args.prompts:
        with open(args.prompts, encoding="utf-8") as file:
            prompts = file.read().splitlines()
    release = Release()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=different_words,
        args=GRPOConfig(
            output_dir=args.out,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            num_generations=args.generations,
            max_completion_length=args.length,
            learning_rate=args.lr,
            bf16=torch.cuda.is_available(),
            save_strategy="no",
            logging_steps=1,
            report_to=[],
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[] if args.keep else [release],
    )
    trainer.optimizer_cls_and_kwargs = (hocket.TrainerFactory, {"overlap": args.overlap})
    trainer.train()
    opt = trainer.optimizer.optimizer
    print("given back after each step:", *release.bytes)
    print(f"held now: {opt.gpu_bytes()} bytes")
    print("checksum", opt.checksum())


if __name__ == "__main__":
    main()
